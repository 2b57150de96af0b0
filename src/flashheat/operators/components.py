"""The weak Laplacian and the areas of packed meshes become connected components in standard form, and batches of them.

It is separate from the solvers because heat does not cross components: each is a problem of its own, and equal parts
then cannot hide one another's equal eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flashheat.operators.csr import CSR
from flashheat.operators.segments import reduced, summed

BATCH_ROWS = {"cuda": 200_000, "cpu": 0}  # of a batch, with what pads them: some 20 arrays of them are alive at once
SMALLEST = 0.7  # share of the rows of a batch's largest component that its others must have


@dataclass
class Component:
    """One connected component, and what is known of its spectrum.

    Args:
        mesh: which mesh it is of.
        rows: where it lies among the rows of its `System`.
        unit: 4 pi / area; by Weyl's law eigenvalue number k is about k units.
        wanted: how many eigenpairs are asked of it.
        evals: [k] ascending.
        U: [n, k] orthonormal.
        residuals: [k].
        solver: what found them.
    """

    mesh: int
    rows: slice
    unit: float
    wanted: int = 0
    evals: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    U: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    residuals: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    solver: str = ""

    @property
    def n(self) -> int:
        """How many vertices it has."""
        return self.rows.stop - self.rows.start


@dataclass(frozen=True)
class System:
    """`A = M^-1/2 L M^-1/2` of all vertices with area, component after component, the largest of a mesh first.

    Args:
        A: [N, N], no entries between components.
        root: [N] square roots of the areas.
        points: [N, 3].
        rows: [N] the vertex of each row.
        components: mesh after mesh.
    """

    A: CSR
    root: Tensor
    points: Tensor
    rows: Tensor
    components: list[Component]


@dataclass(frozen=True)
class Batch:
    """Components side by side, each padded to n rows with rows of zeros.

    Args:
        members: B of them.
        A: [B n, B n].
        null: [B, n, 1] sqrt(mass), unit length: the eigenvector of eigenvalue 0.
        points: [B, n, 3].
        real: [B, n] False where a row is padding.
        unit: [B, 1].
    """

    members: Sequence[Component]
    A: CSR
    null: Tensor
    points: Tensor
    real: Tensor
    unit: Tensor

    @property
    def n(self) -> int:
        """How many rows the largest component has."""
        return self.real.shape[1]

    @property
    def wanted(self) -> int:
        """How many eigenpairs are asked of each."""
        return max(member.wanted for member in self.members)

    def apply(self, X: Tensor) -> Tensor:
        """`A X` of each component [B, n, k]."""
        return (self.A.to_torch() @ X.reshape(-1, X.shape[2])).view_as(X)


def standard_form(L: CSR, mass: Tensor, points: Tensor, labels: Tensor, mesh: Tensor, shift: float) -> System:
    """Split what has area into its components.

    Args:
        L: [V, V].
        mass: [V] > 0 where a vertex has area, else 0.
        points: [V, 3].
        labels: [V] the connected component of each vertex (ignored where mass is 0).
        mesh: [V] which mesh each vertex is of, ascending.
        shift: added to L's diagonal.
    """
    active = mass > 0
    n_labels, n_rows = int(labels.amax()) + 1, int(active.sum())
    rows = torch.where(active, labels, n_labels).argsort(stable=True)[:n_rows]
    area = reduced(mass[rows], labels[rows], n_labels, "sum")
    of_label = mesh.new_zeros(n_labels).scatter_(0, labels, mesh)
    by_area = area.argsort(descending=True, stable=True)
    by_area = by_area[of_label[by_area].argsort(stable=True)]
    rank = torch.empty_like(by_area).scatter_(0, by_area, torch.arange(n_labels, device=area.device))
    rows = rows[rank[labels[rows]].argsort(stable=True)]
    by_area = by_area[area[by_area] > 0]
    number = torch.full_like(labels, -1).scatter_(0, rows, torch.arange(len(rows), device=rows.device))
    i, j = number[L.rows()], number[L.indices]
    kept, root = (i >= 0) & (j >= 0), mass[rows].sqrt()
    i, j, values = i[kept], j[kept], L.values[kept]
    (A,) = CSR.from_entries(i, j, [(values + shift * (i == j)) / (root[i] * root[j])], len(rows))
    size = summed(labels[rows], torch.ones_like(rows), n_labels)[by_area]
    stop = size.cumsum(0)
    described = torch.stack([of_label[by_area].double(), (stop - size).double(), stop.double(), area[by_area]])
    components = [
        Component(int(of), slice(int(start), int(end)), 4 * math.pi / of_area)
        for of, start, end, of_area in described.mT.tolist()
    ]
    return System(A, root, points[rows], rows, components)


def batches(system: System, components: Sequence[Component]) -> Iterator[Batch]:
    """Components of about one size together on a GPU, each alone on a CPU."""
    left = sorted(components, key=lambda of: -of.n)
    while left:
        n = left[0].n
        most = max(1, BATCH_ROWS[system.root.device.type] // n)
        least = max(SMALLEST * n, max(of.wanted for of in left[:most]))  # each must have as many eigenpairs as any
        members = [left[0], *(of for of in left[1:most] if of.n >= least)]
        left = left[len(members) :]
        yield batch_of(system, members)


def batch_of(system: System, members: Sequence[Component]) -> Batch:
    """The members side by side."""
    device, n = system.root.device, members[0].n
    start, stop = torch.tensor([[of.rows.start, of.rows.stop] for of in members], device=device).mT
    rows = start[:, None] + torch.arange(n, device=device)
    real = rows < stop[:, None]
    rows = torch.where(real, rows, start[:, None])
    first = system.A.indptr[rows]
    lengths = torch.where(real, system.A.indptr[rows + 1] - first, 0).view(-1)
    indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    n_entries = int(indptr[-1])
    row = torch.arange(lengths.numel(), device=device).repeat_interleave(lengths, output_size=n_entries)
    entry = torch.arange(n_entries, device=device) + (first.view(-1) - indptr[:-1])[row]
    columns = system.A.indices[entry] + (torch.arange(len(members), device=device) * n - start)[row // n]
    A = CSR(indptr, columns, system.A.values[entry], (len(members) * n, len(members) * n))
    null = torch.where(real, system.root[rows], 0.0)[..., None]
    null = null / torch.linalg.vector_norm(null, dim=1, keepdim=True)
    points = torch.where(real[..., None], system.points[rows], 0.0)
    unit = torch.tensor([of.unit for of in members], dtype=torch.float64, device=device)[:, None]
    return Batch(members, A, null, points, real, unit)
