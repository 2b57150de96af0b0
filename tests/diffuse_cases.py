"""`diffuse` and all its derivatives against the float64 reference, for the interpreter's and the GPU's tests alike."""

import torch
from torch import Tensor

from flashheat.bench.cases import Case
from flashheat.ops import diffuse, diffuse_reference

NAMES = ["x", "mass", "evals", "evecs", "times"]


def results(case: Case, run=diffuse) -> dict[str, Tensor]:
    """`y`, `s` and the derivative in every argument, for cotangents of both outputs."""
    inputs = [getattr(case, name).detach().requires_grad_() for name in NAMES]
    y, s = run(*inputs, case.offsets, return_spectral=True)
    grads = torch.autograd.grad([y, s], inputs, [case.g, case.h.to(s.dtype)])
    return {"y": y.detach(), "s": s.detach(), **{f"d_{n}": g for n, g in zip(NAMES, grads, strict=True)}}


def errors(case: Case, run=diffuse) -> dict[str, float]:
    """Relative error of `y`, `s` and each derivative, for cotangents of both outputs."""
    exact, got = results(case.double(), diffuse_reference), results(case, run)
    return {name: relative(got[name], exact[name]) for name in exact}


def relative(a: Tensor, b: Tensor) -> float:
    """`|a - b| / |b|`; infinite where anything is not finite or the shapes differ."""
    if a.shape != b.shape or not torch.isfinite(a).all():
        return float("inf")
    scale = b.norm()
    return float((a.double() - b).norm() / scale) if scale > 0 else float(a.abs().sum())


def second_derivatives(case: Case, run) -> list[Tensor]:
    """Derivatives of `sum of squares of all first derivatives`, for the features, basis and times."""
    inputs = [getattr(case, name).detach().requires_grad_() for name in NAMES]
    y, s = run(*inputs, case.offsets, return_spectral=True)
    loss = (y**2 * case.g).sum() + (s**2 * case.h).sum()
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    return list(torch.autograd.grad(sum((d**2).sum() for d in first), inputs))


def poison() -> None:
    """Fill freed GPU memory with NaN, so that an output that nothing wrote cannot pass."""
    blocks = [torch.full((n,), float("nan"), device="cuda") for n in (2**22, 2**20, 2**18, 2**16, 2**14, 2**12, 2**10)]
    del blocks
