"""Random but lawful inputs for the ops, shared by tests and benchmarks.

They are separate so that a test and a benchmark of one size hold the ops to the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class DiffusionCase:
    """The arguments of `flashheat.diffuse_with_gradient` (and so of `diffuse`) by name, in order."""

    x: Tensor
    mass: Tensor
    evals: Tensor
    evecs: Tensor
    gradX_evecs: Tensor
    gradY_evecs: Tensor
    times: Tensor
    offsets: Tensor | None = None

    def tensors(self, *names: str) -> list[Tensor]:
        """The named tensors; without names all floating-point ones."""
        return [getattr(self, name) for name in names or [f.name for f in fields(self)[:-1]]]


def diffusion_case(
    n_verts: int | Sequence[int],
    k_eig: int,
    channels: int,
    *,
    leading: bool = False,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> DiffusionCase:
    """A random case with the laws of a mesh: positive areas of sum 1, M-orthonormal `evecs` whose first is constant.

    Args:
        n_verts: the number of vertices; a sequence makes a batch of meshes.
        k_eig: columns K of the basis; those beyond a mesh's own number of vertices are zero.
        channels: channels C.
        leading: a batch of equal sizes gets a leading axis instead of `offsets`.
        dtype, device: of every floating-point tensor.
        seed: of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = [n_verts] if isinstance(n_verts, int) else list(n_verts)
    meshes = [_mesh_case(v, k_eig, channels, generator) for v in sizes]
    times = torch.rand(channels, generator=generator, dtype=torch.float64) * 0.2
    x, mass, evals, evecs, gradX_evecs, gradY_evecs = zip(*meshes, strict=True)
    offsets = None
    if isinstance(n_verts, int):
        parts = [t[0] for t in (x, mass, evals, evecs, gradX_evecs, gradY_evecs)]
    elif leading:
        parts = [torch.stack(t) for t in (x, mass, evals, evecs, gradX_evecs, gradY_evecs)]
    else:
        parts = [torch.cat(x), torch.cat(mass), torch.stack(evals), *map(torch.cat, (evecs, gradX_evecs, gradY_evecs))]
        offsets = torch.tensor([0, *sizes]).cumsum(0).to(device)
    names = [f.name for f in fields(DiffusionCase)[:-1]]
    tensors = {name: t.to(device, dtype) for name, t in zip(names, (*parts, times), strict=True)}
    return DiffusionCase(**tensors, offsets=offsets)


def _mesh_case(n_verts: int, k_eig: int, channels: int, generator: torch.Generator) -> list[Tensor]:
    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mass = torch.rand(n_verts, generator=generator, dtype=torch.float64) + 0.1
    mass = mass / mass.sum()
    k_valid = min(n_verts, k_eig)
    columns = randn(n_verts, k_valid)
    columns[:, :1] = 1.0
    orthonormal, _ = torch.linalg.qr(columns * mass.sqrt()[:, None])
    evecs = torch.zeros(n_verts, k_eig, dtype=torch.float64)
    evecs[:, :k_valid] = orthonormal / mass.sqrt()[:, None]
    k = torch.arange(k_eig, dtype=torch.float64)
    evals = torch.where(k < k_valid, 4 * torch.pi * k, 0.0)  # Weyl's law for the unit area
    return [randn(n_verts, channels), mass, evals, evecs, randn(n_verts, k_eig), randn(n_verts, k_eig)]
