"""The handwritten derivatives of `diffuse`, for the autograd node of eager calls and for the library op alike.

They are separate from the contract in `diffuse`, whose reference has its derivatives from plain autograd.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashheat.ops.basis import decay, expand_on, reduce_on
from flashheat.ops.dispatch import launcher


class Diffuse(torch.autograd.Function):
    """`(y, s)` in one launch and its derivatives in one more; `derivatives` has the equations."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Launch; keep the inputs and `s`, and `x` only where a derivative needs it."""
        y, s = launch_forward(x, mass, evals, evecs, times, offsets, path)
        save(ctx, x, mass, evals, evecs, times, offsets, s)
        ctx.path = path
        return y, s

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple[Tensor | None, ...]:
        """The derivatives that are asked for; made of differentiable ops where they may be differentiated in turn."""
        expand = partial(expand_on, path=ctx.path)
        if torch.is_grad_enabled():
            spectral = partial(spectral_backward, reduce=partial(reduce_on, path=ctx.path), expand=expand)
        else:
            spectral = partial(launch_backward, path=ctx.path)
        return *derivatives(ctx, g, h, spectral, expand), None, None


def save(
    ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None, s: Tensor
) -> None:
    """Keep what `derivatives` needs."""
    need_x = ctx.needs_input_grad[1] or ctx.needs_input_grad[3]
    ctx.save_for_backward(x if need_x else None, mass, evals, evecs, times, offsets, s)
    ctx.dtype, ctx.n_channels = x.dtype, x.shape[-1]
    ctx.set_materialize_grads(False)


def derivatives(
    ctx: Any, g: Tensor | None, h: Tensor | None, spectral: Callable[..., Any], expand: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    """The derivatives in `x, mass, evals, evecs, times`. With `g = dJ/dy`, `h = dJ/ds`, `w` the decay:

        g_hat = evecs^T g + h       u = w * g_hat       e = evecs u
        d_x = mass * e              d_mass = sum over c of x e
        d_times = -sum over k of evals s g_hat          d_evals = -sum over c of times s g_hat
        d_evecs = g s^T + (mass * x) u^T

    Args:
        ctx: as `save` left it.
        g, h: the cotangents of `y` and `s`; None counts as zero.
        spectral: gives `(e, u, d_times, d_evals)` as `spectral_backward` does.
        expand: gives `evecs s` from `(s, evecs, offsets)`.
    """
    x, mass, evals, evecs, times, offsets, s = ctx.saved_tensors
    need_x, need_mass, need_evals, need_evecs, need_times = ctx.needs_input_grad[:5]
    if g is None:
        g = evecs.new_zeros((*evecs.shape[:-1], ctx.n_channels), dtype=ctx.dtype)
    scale = None if need_mass else mass
    e, u, d_times, d_evals = spectral(
        g, h, scale, evals, evecs, times, offsets, s,
        need_expand=need_x or need_mass, need_times=need_times, need_evals=need_evals,
    )  # fmt: skip
    d_x = d_mass = d_evecs = None
    if need_x:
        d_x = (e if scale is not None else mass.unsqueeze(-1) * e).to(ctx.dtype)
    if need_mass:
        d_mass = (x * e).sum(-1).to(mass.dtype)
    if need_evecs:
        d_evecs = expand(s.mT.to(g.dtype), g, offsets)
        weighted = (mass.unsqueeze(-1) * x).to(x.dtype)
        d_evecs = (d_evecs + expand(u.mT.to(x.dtype), weighted, offsets)).to(evecs.dtype)
    d_evals = d_evals.to(evals.dtype) if need_evals else None
    d_times = d_times.to(times.dtype) if need_times else None
    return d_x, d_mass, d_evals, d_evecs, d_times


def spectral_backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, *, need_expand: bool, need_times: bool, need_evals: bool,
    reduce: Callable[..., Tensor], expand: Callable[..., Tensor],
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """`(e, u, d_times, d_evals)` of `derivatives`, `e` times `mass` if there is one; by `reduce(g, evecs, offsets)` and
    `expand(u, evecs, offsets)`."""
    g_hat = reduce(g, evecs, offsets)
    if h is not None:
        g_hat = g_hat + h
    u = decay(evals, times, g_hat.dtype) * g_hat
    e = expand(u, evecs, offsets) if need_expand else None
    if e is not None and mass is not None:
        e = mass.unsqueeze(-1) * e
    both = -s * g_hat
    d_times = (evals.unsqueeze(-1) * both).flatten(0, -2).sum(0) if need_times else None
    return e, u, d_times, (times * both).sum(-1) if need_evals else None


def launch_forward(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None, path: str
) -> Any:
    """`(y, s)` in one launch on `path`."""
    return launcher(path).forward(x, mass, evals, evecs, times, offsets, path)


def launch_backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, *, path: str, need_expand: bool, need_times: bool, need_evals: bool,
) -> Any:  # fmt: skip
    """`(e, u, d_times, d_evals)` of `derivatives` in one launch on `path`."""
    g = g if g.stride(-1) == 1 else g.contiguous()
    return launcher(path).backward(
        g, h, mass, evals, evecs, times, offsets, s, path, expand=need_expand, d_times=need_times, d_evals=need_evals
    )
