"""Learned heat diffusion of features on a surface: project on the basis, decay, come back.

This file is the contract: the equation, the checks and the reference that every faster path is held to.
"""

from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor

from flashheat.ops.adjoint import Diffuse, launch_forward
from flashheat.ops.basis import decay, from_basis_reference, to_basis_reference
from flashheat.ops.checks import check_features, check_spectrum, check_times
from flashheat.ops.dispatch import is_traced_op, needs_grad, path_of


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
    if is_traced_op(evecs, x):
        y, s = torch.ops.flashheat.diffuse(x, mass, evals, evecs, times, offsets)
        return (y, s) if return_spectral else y
    path = path_of(evecs, x, offsets)
    if path is None:
        return diffuse_reference(x, mass, evals, evecs, times, offsets, return_spectral)
    run: Callable[..., tuple[Tensor, Tensor]] = (
        Diffuse.apply if needs_grad(x, mass, evals, evecs, times) else launch_forward
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
