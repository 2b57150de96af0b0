"""Random problems for the benchmarks and GPU tests: one mesh, or meshes packed along the vertices."""

from dataclasses import dataclass

import torch
from torch import Tensor

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """The arguments of `diffuse`, and cotangents `g` of `y` and `h` of `s`."""

    x: Tensor
    mass: Tensor
    evals: Tensor
    evecs: Tensor
    times: Tensor
    offsets: Tensor | None
    g: Tensor
    h: Tensor

    def double(self) -> "Case":
        """The same numbers in float64."""
        return Case(**{k: v.double() if v is not None and v.is_floating_point() else v for k, v in vars(self).items()})


def random_case(
    V: int, K: int, C: int, dtype: torch.dtype = torch.float32, sizes: list[int] | None = None, device: str = "cuda",
    seed: int = 0, whole: bool = False,
) -> Case:  # fmt: skip
    """Mass near 1/V, an almost M-orthonormal basis and decays from 1 to 1e-3; `whole`: small integers, no decay."""
    rng = torch.Generator(device).manual_seed(seed)
    batch = () if sizes is None else (len(sizes),)
    V = V if sizes is None else sum(sizes)
    offsets = None if sizes is None else torch.tensor([0, *sizes], device=device).cumsum(0)

    def normal(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=rng, device=device).float()
        return torch.randn(shape, generator=rng, device=device)

    mass = torch.rand(V, generator=rng, device=device)
    mass = (mass * 2).floor() + 1 if whole else (mass + 0.5) / max(1, V)
    evals = torch.rand((*batch, K), generator=rng, device=device).sort(-1).values * (0 if whole else 7)
    times = torch.rand(C, generator=rng, device=device)
    x, evecs, g, h = normal(V, C).to(dtype), normal(V, K).to(dtype), normal(V, C).to(dtype), normal(*batch, K, C)
    return Case(x, mass, evals, evecs, times, offsets, g, h)
