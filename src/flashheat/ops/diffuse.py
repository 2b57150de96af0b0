"""Learned heat diffusion of features on a surface: project on the basis, decay, come back.

This file is the contract: the equation, the checks and the reference that every faster path is held to.
"""

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from flashheat.ops.basis import FromBasis, ToBasis, from_basis_reference, to_basis_reference
from flashheat.ops.checks import check_features, check_spectrum, check_times
from flashheat.ops.dispatch import launcher, needs_grad, path_of


@overload
def diffuse(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None = None
) -> Tensor: ...
@overload
def diffuse(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    *,
    return_spectral: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def diffuse(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    return_spectral: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
def diffuse(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    return_spectral: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Diffuse each channel of `x` over the surface for its own time.

        x_hat  = evecs^T (mass * x)
        s[k,c] = exp(-evals[k] * times[c]) * x_hat[k,c]
        y      = evecs s

    Args:
        x: features `[V, C]`; `[B, V, C]` for meshes of equal size; `[sum V, C]` with `offsets`.
        mass: lumped vertex areas `[V]` (length^2), with the leading axis of `x`.
        evals: eigenvalues `[K]` (length^-2); for a batch `[B, K]`.
        evecs: M-orthonormal eigenvectors `[V, K]` (length^-1), with the leading axis of `x`.
        times: one diffusion time per channel `[C]` (length^2), shared by all meshes of a batch.
        offsets: int64 `[B + 1]`: mesh `b` of a packed batch owns the rows `offsets[b]` to `offsets[b + 1]`. On a GPU
            they must rise from 0 to the number of rows unchecked: to read them would wait for the device, and rows
            that no mesh owns are not written.
        return_spectral: also return `s`.

    Returns:
        `y`, of the shape and dtype of `x`; with `return_spectral` the pair `(y, s)`, `s [K, C]` (`[B, K, C]`) in
        float32, or float64 where `x` or `evecs` is.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments. Values are not looked at
            (that would wait for a device): a NaN spreads over its channel, as in any torch product.

    Differentiable in every tensor but `offsets`, to any order, by `torch.autograd` and `torch.func`. Half-precision
    features are summed, decayed and kept in the spectrum in float32. Conserves `sum(mass * y)` where constants lie in
    the basis; `times = 0` is the projection onto the basis, not the identity.

    Source: Sharp et al. 2022 (arXiv 2012.00888), equation 7.
    """
    check_features(x, evecs, mass, offsets)
    check_spectrum(evals, evecs, offsets)
    check_times(times, x)
    path = path_of(evecs, x, offsets)
    if path is None:
        return diffuse_reference(x, mass, evals, evecs, times, offsets, return_spectral)
    run: Callable[..., tuple[Tensor, Tensor]] = (
        Diffuse.apply if needs_grad(x, mass, evals, evecs, times) else _launch_forward
    )
    y, s = run(x, mass, evals, evecs, times, offsets, path)
    return (y, s) if return_spectral else y


def diffuse_reference(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    return_spectral: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The specification of `diffuse`: plain PyTorch, differentiable by plain autograd."""
    x_hat = to_basis_reference(x, mass, evecs, offsets)
    s = decay(evals, times, x_hat.dtype) * x_hat
    y = from_basis_reference(s, evecs, offsets).to(x.dtype)
    return (y, s) if return_spectral else y


def decay(evals: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """`w[k, c] = exp(-evals[k] * times[c])`, `[K, C]` or `[B, K, C]`."""
    return torch.exp(-evals.to(dtype).unsqueeze(-1) * times.to(dtype))


class Diffuse(torch.autograd.Function):
    """`(y, s)` in one launch and its derivatives in one more. With `g = dJ/dy`, `h = dJ/ds`, `w` the decay:

        g_hat = evecs^T g + h       u = w * g_hat       e = evecs u
        d_x = mass * e              d_mass = sum over c of x e
        d_times = -sum over k of evals s g_hat          d_evals = -sum over c of times s g_hat
        d_evecs = g s^T + (mass * x) u^T

    Where a derivative of the derivative may be asked for, the same lines are made of differentiable ops.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None,
        path: str,
    ) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        """Launch; keep the inputs and `s`, and `x` only where a derivative needs it."""
        y, s = _launch_forward(x, mass, evals, evecs, times, offsets, path)
        need_x = ctx.needs_input_grad[1] or ctx.needs_input_grad[3]
        ctx.save_for_backward(x if need_x else None, mass, evals, evecs, times, offsets, s)
        ctx.path, ctx.dtype, ctx.n_channels = path, x.dtype, x.shape[-1]
        ctx.set_materialize_grads(False)
        return y, s

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple[Tensor | None, ...]:
        """The derivatives that are asked for, from the cotangents of `y` and `s`."""
        x, mass, evals, evecs, times, offsets, s = ctx.saved_tensors
        need_x, need_mass, need_evals, need_evecs, need_times, _, _ = ctx.needs_input_grad
        if g is None:
            g = evecs.new_zeros((*evecs.shape[:-1], ctx.n_channels), dtype=ctx.dtype)
        spectral = _spectral_backward if torch.is_grad_enabled() else _launch_backward
        scale = None if need_mass else mass
        e, u, d_times, d_evals = spectral(
            g, h, scale, evals, evecs, times, offsets, s, ctx.path,
            expand=need_x or need_mass, d_times=need_times, d_evals=need_evals,
        )  # fmt: skip
        d_x = d_mass = d_evecs = None
        if need_x and e is not None:
            d_x = (e if scale is not None else mass.unsqueeze(-1) * e).to(ctx.dtype)
        if need_mass and e is not None:
            d_mass = (x * e).sum(-1).to(mass.dtype)
        if need_evecs and u is not None:
            d_evecs = FromBasis.apply(s.mT.to(g.dtype), g, offsets, ctx.path)
            weighted = (mass.unsqueeze(-1) * x).to(x.dtype)
            d_evecs = (d_evecs + FromBasis.apply(u.mT.to(x.dtype), weighted, offsets, ctx.path)).to(evecs.dtype)
        d_evals = None if d_evals is None else d_evals.to(evals.dtype)
        d_times = None if d_times is None else d_times.to(times.dtype)
        return d_x, d_mass, d_evals, d_evecs, d_times, None, None


def _launch_forward(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None, path: str
) -> Any:
    return launcher(path).forward(x, mass, evals, evecs, times, offsets, path)


def _launch_backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, path: str, **wanted: bool,
) -> Any:  # fmt: skip
    g = g if g.stride(-1) == 1 else g.contiguous()
    return launcher(path).backward(g, h, mass, evals, evecs, times, offsets, s, path, **wanted)


def _spectral_backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, path: str, *, expand: bool, d_times: bool, d_evals: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """`(e, u, d_times, d_evals)` as `_launch_backward` computes them, differentiable once more."""
    g_hat = ToBasis.apply(g, None, evecs, offsets, path)
    if h is not None:
        g_hat = g_hat + h
    u = decay(evals, times, g_hat.dtype) * g_hat
    e = FromBasis.apply(u, evecs, offsets, path) if expand else None
    if e is not None and mass is not None:
        e = mass.unsqueeze(-1) * e
    both = -s * g_hat
    out_times = (evals.unsqueeze(-1) * both).flatten(0, -2).sum(0) if d_times else None
    return e, u, out_times, (times * both).sum(-1) if d_evals else None
