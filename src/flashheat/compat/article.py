"""The interface of the article that fused this layer first: `torch_diffusion` and `FlashDiffusion.apply`.

    out, spectral = diffusion_func(basis, x, mass, e, d)

Shapes are the article's: `basis [..., V, K]`, `x [..., V, C]`, `mass [..., V]` (length^2), `e [..., K]` (length^-2),
`d [C]` (length^2), leading axes broadcast against one another. `out [..., V, C]` and `spectral [..., K, C]` have the
dtype of `x`. What the article leaves out works: every derivative, any V, every dtype. A `basis` that several `x` share
is copied for each of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.ops import diffuse, diffuse_reference
from flashheat.ops.checks import check_features, check_spectrum, check_times


def torch_diffusion(x: Tensor, basis: Tensor, mass: Tensor, evalues: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """`(out, spectral)` by plain PyTorch: `spectral = exp(-evalues times) (basis^T (mass x))`, `out = basis spectral`.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree.
    """
    return _in_one_batch(_checked_reference, x, basis, mass, evalues, times)


def diffusion_func(basis: Tensor, x: Tensor, mass: Tensor, e: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """The same by the fused kernel where it serves (`flashheat.diffuse`), differentiable in every argument.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree.
    """
    return _in_one_batch(diffuse, x, basis, mass, e, d)


class FlashDiffusion:
    """The article's class, for code that calls `FlashDiffusion.apply(basis, x, mass, e, d)`."""

    apply = staticmethod(diffusion_func)


def _checked_reference(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, *rest: Any) -> Any:
    check_features(x, evecs, mass, None)
    check_spectrum(evals, evecs, None)
    check_times(times, x)
    return diffuse_reference(x, mass, evals, evecs, times, *rest)


def _in_one_batch(
    run: Callable[..., Any], x: Tensor, basis: Tensor, mass: Tensor, evals: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """Run with all leading axes as one, which is what the ops take."""
    own = {"x": (x, 2), "basis": (basis, 2), "mass": (mass, 1), "evalues (e)": (evals, 1)}
    for name, (t, n_axes) in {**own, "times (d)": (times, 1)}.items():
        if not isinstance(t, Tensor):
            raise FlashheatError(f"{name} must be a tensor; it is of type {type(t).__name__}")
        if t.ndim < n_axes:
            axes = "axis" if n_axes == 1 else "axes"
            raise FlashheatError(f"{name} must have at least {n_axes} {axes}; its shape is {tuple(t.shape)}")
    leading = [t.shape[: t.ndim - n_axes] for t, n_axes in own.values()]
    try:
        batch = torch.broadcast_shapes(*leading)
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, (t, _) in own.items())
        raise FlashheatError(f"the leading axes must broadcast against one another; they are of {shapes}") from error

    def flat(t: Tensor, n_axes: int) -> Tensor:
        own_shape = t.shape[t.ndim - n_axes :]
        return t.expand(*batch, *own_shape).reshape(batch.numel(), *own_shape) if batch else t

    try:
        out, spectral = run(flat(x, 2), flat(mass, 1), flat(evals, 1), flat(basis, 2), times, None, True)
    except FlashheatError as error:
        names = "evecs is basis here, evals is evalues or e, times is times or d"
        raise FlashheatError(f"{error} ({names})") from error
    if not batch:
        return out, spectral.to(x.dtype)
    return out.unflatten(0, batch), spectral.to(x.dtype).unflatten(0, batch)
