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

_LAYOUTS = (("...", "V", "C"), ("...", "V", "K"), ("...", "V"), ("...", "K"), ("C",))  # of x, basis, mass, evals, times


def torch_diffusion(x: Tensor, basis: Tensor, mass: Tensor, evalues: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """`(out, spectral)` by plain PyTorch: `spectral = exp(-evalues times) (basis^T (mass x))`, `out = basis spectral`.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree.
    """
    return _in_one_batch(_checked_reference, x=x, basis=basis, mass=mass, evalues=evalues, times=times)


def diffusion_func(basis: Tensor, x: Tensor, mass: Tensor, e: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """The same by the fused kernel where it serves (`flashheat.diffuse`), differentiable in every argument.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree.
    """
    return _in_one_batch(diffuse, x=x, basis=basis, mass=mass, e=e, d=d)


class FlashDiffusion:
    """The article's class, for code that calls `FlashDiffusion.apply(basis, x, mass, e, d)`."""

    apply = staticmethod(diffusion_func)


def _checked_reference(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, *rest: Any) -> Any:
    check_features(x, evecs, mass, None)
    check_spectrum(evals, evecs, None)
    check_times(times, x)
    return diffuse_reference(x, mass, evals, evecs, times, *rest)


def _in_one_batch(run: Callable[..., Any], **tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Run with all leading axes as one, which is what the ops take; `tensors` are x, basis, mass, evals and times."""
    for (name, t), layout in zip(tensors.items(), _LAYOUTS, strict=True):
        _check_axes(name, t, layout)
    x, basis, mass, evals, times = tensors.values()
    own = ((x, 2), (basis, 2), (mass, 1), (evals, 1))
    try:
        batch = torch.broadcast_shapes(*(t.shape[: t.ndim - n_axes] for t, n_axes in own))
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in list(tensors.items())[:-1])
        raise FlashheatError(
            f"the leading axes must broadcast against one another: got {shapes}. Give each those of `x`, or none."
        ) from error

    def flat(t: Tensor, n_axes: int) -> Tensor:
        own_shape = t.shape[t.ndim - n_axes :]
        return t.expand(*batch, *own_shape).reshape(batch.numel(), *own_shape) if batch else t

    try:
        out, spectral = run(flat(x, 2), flat(mass, 1), flat(evals, 1), flat(basis, 2), times, None, True)
    except FlashheatError as error:
        here = dict(zip(("evecs", "evals", "times"), list(tensors)[1:2] + list(tensors)[3:], strict=True))
        names = ", ".join(f"{ours} is {theirs}" for ours, theirs in here.items() if ours != theirs)
        raise FlashheatError(f"{error} ({names} here)") from error
    if not batch:
        return out, spectral.to(x.dtype)
    return out.unflatten(0, batch), spectral.to(x.dtype).unflatten(0, batch)


def _check_axes(name: str, t: Tensor, layout: tuple[str, ...]) -> None:
    axes = f"[{', '.join(layout)}]"
    if not isinstance(t, Tensor):
        what_to_do = (
            "For one time t, pass `x.new_full((C,), t)`." if layout == ("C",) else "torch.as_tensor makes it one."
        )
        raise FlashheatError(f"`{name}` must be a torch.Tensor {axes}: got {type(t).__name__}. {what_to_do}")
    n_axes = len(layout) - (layout[0] == "...")
    if t.ndim < n_axes:
        what_to_do = (
            f"A single column is `{name}[:, None]`" if n_axes == 2 else f"One for all is `{name}.expand({layout[-1]})`"
        )
        raise FlashheatError(f"`{name}` must be {axes}: got {name} {list(t.shape)}. {what_to_do}.")
