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


# A compiler cannot trace a loop over sizes that it does not know, so under `torch.compile` and `torch.export` the two
# packed products are opaque library ops. Eager calls and `torch.func` do not come here.


@torch.library.custom_op("flashheat::packed_reduce", mutates_args=())
def _packed_reduce_op(left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
    refuse_forward_mode("flashheat::packed_reduce")
    return _packed_reduce(left, right, offsets)


@torch.library.custom_op("flashheat::packed_expand", mutates_args=())
def _packed_expand_op(left: Tensor, r: Tensor, offsets: Tensor) -> Tensor:
    refuse_forward_mode("flashheat::packed_expand")
    return _packed_expand(left, r, offsets)


def refuse_forward_mode(name: str) -> None:
    """A library op has no rule for forward-mode derivatives, and torch would return zero without a word."""
    if torch.autograd.forward_ad._current_level >= 0:
        raise FlashheatError(
            f"{name} has no forward-mode derivative (jvp, jacfwd): call flashheat.diffuse, to_basis or from_basis "
            "eagerly, which have it."
        )


@_packed_reduce_op.register_fake
def _(left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
    return left.new_empty(offsets.shape[0] - 1, left.shape[1], right.shape[1])


@_packed_expand_op.register_fake
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


_packed_reduce_op.register_autograd(_reduce_backward, setup_context=_save)
_packed_expand_op.register_autograd(_expand_backward, setup_context=_save)
