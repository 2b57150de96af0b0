"""From features at vertices to coefficients in the spectral basis, and back.

They are separate from `diffuse` because they also serve by themselves: projections, functional maps, filters of one's
own. `<op>_reference` is the specification: plain PyTorch on any device in any float dtype.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashheat.ops.checks import accumulation_dtype, check_features, check_spectral
from flashheat.ops.dispatch import is_traced_op, launcher, path_of
from flashheat.ops.packed import expand, reduce


def to_basis(x: Tensor, mass: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Coefficients of features in the basis, in the mass inner product.

        x_hat = evecs^T (mass * x)

    Args:
        x: features `[V, C]`, or `[B, V, C]`; with `offsets` the meshes' vertices one after the other, `[sum V, C]`.
        mass: lumped vertex areas `[V]` (length^2), with the leading axis of `x`.
        evecs: basis `[V, K]` (length^-1), with the leading axis of `x`.
        offsets: int64 `[B + 1]`: mesh `b` of a packed batch owns the rows `offsets[b]` to `offsets[b + 1]`.

    Returns:
        `[K, C]`; for a batch `[B, K, C]`; in float32, or float64 where `x` or `evecs` is.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments.

    Differentiable in every tensor but `offsets`, to any order.

    Source: Sharp et al. 2022 (arXiv 2012.00888), section 3.1.
    """
    check_features(x, evecs, mass, offsets)
    if is_traced_op(evecs, x):
        return torch.ops.flashheat.to_basis(x, mass, evecs, offsets)
    path = path_of(evecs, x, offsets)
    if path is None:
        return to_basis_reference(x, mass, evecs, offsets)
    return ToBasis.apply(x, mass, evecs, offsets, path)


def to_basis_reference(x: Tensor, mass: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The specification of `to_basis`."""
    acc = accumulation_dtype(x, evecs)
    with torch.autocast(x.device.type, enabled=False):
        return reduce(evecs.to(acc), mass.to(acc).unsqueeze(-1) * x.to(acc), offsets)


def from_basis(s: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Features at vertices from coefficients in the basis.

        y = evecs s

    Args:
        s: coefficients `[K, C]`; for a batch `[B, K, C]`.
        evecs: basis `[V, K]`, `[B, V, K]`, or packed `[sum V, K]`.
        offsets: int64 `[B + 1]`, as for `to_basis`.

    Returns:
        `[V, C]` (`[B, V, C]`, `[sum V, C]`), in float32, or float64 where `s` or `evecs` is.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments.

    Differentiable in `s` and `evecs`, to any order.
    """
    check_spectral(s, evecs, offsets)
    if is_traced_op(evecs, s):
        return torch.ops.flashheat.from_basis(s, evecs, offsets)
    path = path_of(evecs, s, offsets)
    if path is None:
        return from_basis_reference(s, evecs, offsets)
    return FromBasis.apply(s, evecs, offsets, path)


def from_basis_reference(s: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The specification of `from_basis`."""
    acc = accumulation_dtype(s, evecs)
    with torch.autocast(evecs.device.type, enabled=False):
        return expand(evecs.to(acc), s.to(acc), offsets)


def decay(evals: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """`w[k, c] = exp(-evals[k] * times[c])`, `[K, C]` or `[B, K, C]`."""
    return torch.exp(-evals.to(dtype).unsqueeze(-1) * times.to(dtype))


class ToBasis(torch.autograd.Function):
    """`evecs^T (mass * x)` in one launch; `mass` may be None. With `FromBasis` closed under differentiation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mass: Tensor | None, evecs: Tensor, offsets: Tensor | None, path: str) -> Tensor:
        """Launch, and keep the inputs."""
        ctx.save_for_backward(x, mass, evecs, offsets)
        ctx.path = path
        return launcher(path).forward(x, mass, None, evecs, None, offsets, path, expand=False)[1]

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives that are asked for, from the cotangent of the coefficients."""
        return *derivatives_of_to_basis(ctx, d, partial(expand_on, path=ctx.path)), None, None


class FromBasis(torch.autograd.Function):
    """`evecs s` in one launch."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, evecs: Tensor, offsets: Tensor | None, path: str) -> Tensor:
        """Launch, and keep the inputs."""
        ctx.save_for_backward(s, evecs, offsets)
        ctx.path = path
        return launcher(path).expand(s, evecs, offsets, path)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives that are asked for, from the cotangent of the features."""
        reduce, expand = partial(reduce_on, path=ctx.path), partial(expand_on, path=ctx.path)
        return *derivatives_of_from_basis(ctx, g, reduce, expand), None, None


def derivatives_of_to_basis(ctx: Any, d: Tensor, expand: Callable[..., Tensor]) -> tuple[Tensor | None, ...]:
    """The derivatives in `x, mass, evecs`, which `ctx` has saved, with `offsets`:

    d_x = mass * (evecs d)      d_mass = sum over c of x (evecs d)      d_evecs = (mass * x) d^T
    """
    x, mass, evecs, offsets = ctx.saved_tensors
    need_x, need_mass, need_evecs = ctx.needs_input_grad[:3]
    d_x = d_mass = d_evecs = None
    if need_x or need_mass:
        e = expand(d, evecs, offsets)
        d_x = (e if mass is None else mass.unsqueeze(-1) * e).to(x.dtype) if need_x else None
        d_mass = (x * e).sum(-1).to(mass.dtype) if need_mass else None
    if need_evecs:
        weighted = x if mass is None else mass.unsqueeze(-1) * x
        d_evecs = expand(d.mT, weighted, offsets).to(evecs.dtype)
    return d_x, d_mass, d_evecs


def derivatives_of_from_basis(
    ctx: Any, g: Tensor, reduce: Callable[..., Tensor], expand: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    """The derivatives in `s, evecs`, which `ctx` has saved, with `offsets`: `d_s = evecs^T g`, `d_evecs = g s^T`."""
    s, evecs, offsets = ctx.saved_tensors
    need_s, need_evecs = ctx.needs_input_grad[:2]
    d_s = reduce(g, evecs, offsets).to(s.dtype) if need_s else None
    d_evecs = expand(s.mT, g, offsets).to(evecs.dtype) if need_evecs else None
    return d_s, d_evecs


def reduce_on(g: Tensor, evecs: Tensor, offsets: Tensor | None, path: str) -> Any:
    """`evecs^T g` on a path of `dispatch`, differentiable."""
    return ToBasis.apply(g, None, evecs, offsets, path)


def expand_on(s: Tensor, evecs: Tensor, offsets: Tensor | None, path: str) -> Any:
    """`evecs s` on a path of `dispatch`, differentiable."""
    return FromBasis.apply(s, evecs, offsets, path)
