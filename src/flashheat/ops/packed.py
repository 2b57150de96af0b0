"""The two products that every op is made of, for one mesh, a leading batch axis, or meshes packed along the vertices.

    reduce:  r[b] = left[b]^T right[b]        vertices -> a small block for each mesh
    expand:  out[b] = left[b] r[b]            a small block -> the vertices of each mesh

They are separate because they are closed under differentiation: the derivatives of each are made of the two,

    reduce:  d_left = expand(right, d_r^T)     d_right = expand(left, d_r)
    expand:  d_left = expand(d_out, r^T)       d_r     = reduce(left, d_out)

so that they are all that a fast implementation has to provide.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.ops.checks import MAKE_OFFSETS
from flashheat.ops.dispatch import is_transformed
from flashheat.ops.refusals import Library


def reduce(left: Tensor, right: Tensor, offsets: Tensor | None = None) -> Tensor:
    """`left^T right` for each mesh: sums over its vertices.

    Args:
        left: `[V, M]` or `[B, V, M]`.
        right: `[V, N]` or `[B, V, N]`.
        offsets: int64 `[B + 1]`; mesh `b` owns the rows `offsets[b]` to `offsets[b + 1]`.

    Returns:
        `[M, N]`; with `offsets` or a leading axis `[B, M, N]`.
    """
    if offsets is None:
        return left.mT @ right
    if torch.compiler.is_compiling():
        _refuse_to_be_compiled_within()
        return torch.ops.flashheat.packed_reduce(left, right, offsets)
    return _packed_reduce(left, right, offsets)


def expand(left: Tensor, r: Tensor, offsets: Tensor | None = None) -> Tensor:
    """`left r` for each mesh.

    Args:
        left: `[V, M]` or `[B, V, M]`.
        r: `[M, N]`; with `offsets` or a leading axis `[B, M, N]`.
        offsets: as for `reduce`.

    Returns:
        `[V, N]` or `[B, V, N]`.
    """
    if offsets is None:
        return left @ r
    if torch.compiler.is_compiling():
        _refuse_to_be_compiled_within()
        return torch.ops.flashheat.packed_expand(left, r, offsets)
    return _packed_expand(left, r, offsets)


def _packed_reduce(left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
    sizes = _sizes(offsets, left.shape[0])
    blocks = [a.mT @ b for a, b in zip(left.split(sizes), right.split(sizes), strict=True)]
    return torch.stack(blocks) if blocks else left.new_zeros(0, left.shape[1], right.shape[1])


def _packed_expand(left: Tensor, r: Tensor, offsets: Tensor) -> Tensor:
    sizes = _sizes(offsets, left.shape[0])
    blocks = [a @ b for a, b in zip(left.split(sizes), r.unbind(0), strict=True)]
    return torch.cat(blocks) if blocks else left.new_zeros(0, r.shape[-1])


def _sizes(offsets: Tensor, n_rows: int) -> list[int]:
    """The number of vertices of each mesh. Reads `offsets` on the host."""
    bounds = offsets.tolist()
    sizes = [stop - start for start, stop in pairwise(bounds)]
    if bounds[0] != 0 or bounds[-1] != n_rows or min(sizes, default=0) < 0:
        raise FlashheatError(
            f"`offsets` must rise from 0 to the number of packed vertices, {n_rows}: "
            f"got {bounds[:4]} ... {bounds[-1]}. {MAKE_OFFSETS}"
        )
    return sizes


def _refuse_to_be_compiled_within() -> None:
    """Without `fullgraph` a compiler takes the error as a word to leave the call to plain Python, which is right."""
    if is_transformed():
        raise FlashheatError(
            "a packed batch must be compiled outside of torch.func and forward mode: got a call within them; leave out "
            "`fullgraph`, or torch.compile."
        )


# A compiler cannot trace a loop over sizes that it does not know, so under `torch.compile` and `torch.export` the two
# packed products are opaque library ops. Eager calls and `torch.func` do not come here.


_library = Library()
_library.define("packed_reduce(Tensor left, Tensor right, Tensor offsets) -> Tensor")
_library.define("packed_expand(Tensor left, Tensor r, Tensor offsets) -> Tensor")
_library.impl("packed_reduce", _packed_reduce, "CompositeExplicitAutograd")
_library.impl("packed_expand", _packed_expand, "CompositeExplicitAutograd")


@torch.library.register_fake("flashheat::packed_reduce", lib=_library)
def _(left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
    return left.new_empty(offsets.shape[0] - 1, left.shape[1], right.shape[1])


@torch.library.register_fake("flashheat::packed_expand", lib=_library)
def _(left: Tensor, r: Tensor, offsets: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], r.shape[-1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _reduce_backward(ctx: Any, d_r: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    left, right, offsets = ctx.saved_tensors
    op = torch.ops.flashheat.packed_expand
    d_left = op(right, d_r.mT, offsets) if ctx.needs_input_grad[0] else None
    d_right = op(left, d_r, offsets) if ctx.needs_input_grad[1] else None
    return d_left, d_right, None


def _expand_backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    left, r, offsets = ctx.saved_tensors
    d_left = torch.ops.flashheat.packed_expand(d_out, r.mT, offsets) if ctx.needs_input_grad[0] else None
    d_r = torch.ops.flashheat.packed_reduce(left, d_out, offsets) if ctx.needs_input_grad[1] else None
    return d_left, d_r, None


torch.library.register_autograd("flashheat::packed_reduce", _reduce_backward, setup_context=_save, lib=_library)
torch.library.register_autograd("flashheat::packed_expand", _expand_backward, setup_context=_save, lib=_library)
