"""The weak Laplacian and the lumped areas become the lowest eigenpairs, with the residuals that prove them.

It is separate because finding eigenpairs is the slow and fragile step of the pipeline: which solver is tried when, and
what is accepted, is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import FlashheatError, MeshError
from flashheat.operators.captured import Captured
from flashheat.operators.components import Batch, Component, System, batch_of, batches, standard_form
from flashheat.operators.csr import CSR
from flashheat.operators.dissection import dissect
from flashheat.operators.multifrontal import analyse, factorise, solve
from flashheat.operators.rotations import canonical
from flashheat.operators.shift_invert import Solve, cholmod, dense, is_small, shift_invert, superlu
from flashheat.operators.subspace import GUARD, SHIFT, lowest_by_subspace, orthonormalised

if TYPE_CHECKING:
    import scipy.sparse

logger = logging.getLogger("flashheat")

DENSE_SHARE = 3  # a GPU finds k eigenpairs of more rows than this share of k and a few by iteration
DENSE_RESCUE_BELOW = 4000
LARGEST_RESIDUAL = 1e-6
ROUNDING = 4  # last bits of U that a residual above the limit may be worth: solver and evaluation have one or two each
STIFF = 1e6  # times the median of A's diagonal
UPSTREAM_SHIFT = 1e-8

Solver = Callable[[Batch, Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of `L phi = lambda M phi` of B packed meshes, each zero-padded to K columns.

    Args:
        evals: [B, K] ascending.
        evecs: [V, K], mass-orthonormal, the (first) entry of largest magnitude positive in each column.
        residuals: [B, K], `|L phi - lambda M phi|_{M^-1} / max(lambda_k, 4 pi / area)`, area of the component.
        k_valid: [B] how many columns are real.
        n_components: [B] connected components that have area.
        solver: what found them, mesh by mesh.
    """

    evals: Tensor
    evecs: Tensor
    residuals: Tensor
    k_valid: Tensor
    n_components: Tensor
    solver: tuple[str, ...]


def lowest_eigenpairs(
    L: CSR, mass: Tensor, points: Tensor, labels: Tensor, mesh: Tensor, k_eig: int, convention: str
) -> Spectrum:
    """The lowest k_eig eigenpairs on each mesh's vertices of positive mass; with fewer vertices, padded with zeros.

    All is done on the device of the arguments, unless its own solvers fail.

    Args:
        L: [V, V].
        mass: [V] > 0 where a vertex has area, else 0.
        points: [V, 3] where the vertices are.
        labels: [V] the connected component of each vertex (ignored where mass is 0).
        mesh: [V] which mesh each vertex is of, ascending; each has a vertex with area.
        k_eig: K.
        convention: natively the constant on each component is exact, with eigenvalue 0; more than K components: the
            smallest share the last constant. "diffusion_net" adds 1e-8 I to L.

    Raises:
        MeshError: when no solver reaches residuals of 1e-6, or of a few last bits beside slivers (a warning says).
    """
    system = standard_form(L, mass, points, labels, mesh, 0.0 if convention == "native" else UPSTREAM_SHIFT)
    meshes = [list(of) for _, of in groupby(system.components, lambda component: component.mesh)]
    n_components = [len(of) for of in meshes]
    to_solve = []
    for components in meshes:
        if convention == "native" and len(components) >= k_eig:
            components[:] = [_constants_only(system, components, k_eig)]
        else:
            to_solve.append(components)
    _solve_all(system, to_solve, k_eig, convention)
    return _merged(system, meshes, n_components, len(mass), k_eig)


def _constants_only(system: System, components: Sequence[Component], k: int) -> Component:
    """As many components as eigenpairs: one constant each, and one for all the smallest together; as one component."""
    rows = slice(components[0].rows.start, components[-1].rows.stop)
    whole = Component(components[0].mesh, rows, 1 / sum(1 / of.unit for of in components), k, solver="constants")
    sizes = torch.tensor([of.n for of in components], device=system.root.device)
    column = torch.arange(len(components), device=sizes.device).clamp_max(k - 1).repeat_interleave(sizes)
    U = torch.zeros(1, whole.n, k, dtype=torch.float64, device=sizes.device)
    U[0].scatter_(1, column[:, None], system.root[rows, None])
    U = U / torch.linalg.vector_norm(U, dim=1, keepdim=True)
    evals = U.new_zeros(1, k)
    residuals = _residuals(batch_of(system, [whole]), evals, U)
    whole.evals, whole.U, whole.residuals = evals[0].cpu(), U[0], residuals[0].cpu()
    return whole


def _solve_all(system: System, meshes: Sequence[list[Component]], k_eig: int, convention: str) -> None:
    """Solve the components, more of each until the k lowest of their mesh are surely among them.

    Weyl's law gives the first guess of how many are a component's own.
    """
    for components in meshes:
        total = sum(1 / of.unit for of in components)
        for of in components:
            of.wanted = min(k_eig, of.n, int(1.2 * k_eig / of.unit / total) + 4)
    growing = [of for components in meshes for of in components]
    while growing:
        for batch in batches(system, growing):
            _solve(system, batch, convention)
        growing = [of for components in meshes for of in _unsure(components, k_eig)]
        for of in growing:
            of.wanted = min(2 * of.wanted, k_eig, of.n)


def _unsure(components: Sequence[Component], k_eig: int) -> list[Component]:
    """Which components of a mesh may have more of its lowest eigenpairs than were found."""
    found = torch.cat([of.evals for of in components]).sort().values
    cut = found[k_eig - 1] if len(found) >= k_eig else torch.inf
    return [of for of in components if of.wanted < min(k_eig, of.n) and of.evals[-1] <= cut]


def _merged(
    system: System, meshes: Sequence[list[Component]], n_components: Sequence[int], n_verts: int, k_eig: int
) -> Spectrum:
    """The lowest of each mesh, whichever of its components they are of."""
    B, device = len(meshes), system.root.device
    evals, residuals = (torch.zeros(B, k_eig, dtype=torch.float64) for _ in range(2))
    U = torch.zeros(len(system.rows), k_eig, dtype=torch.float64, device=device)
    k_valid, solvers = [], []
    for b, components in enumerate(meshes):
        all_evals, all_residuals = (
            torch.cat([getattr(of, name) for of in components]) for name in ("evals", "residuals")
        )
        lowest, first = all_evals.argsort(stable=True)[:k_eig], 0
        k = len(lowest)
        evals[b, :k], residuals[b, :k] = all_evals[lowest], all_residuals[lowest]
        for of in components:
            columns = ((lowest >= first) & (lowest < first + len(of.evals))).nonzero()[:, 0]
            if len(columns) == k:
                U[of.rows, :k] = of.U[:, :k]
            elif len(columns):
                U[of.rows, columns.to(device)] = of.U[:, (lowest[columns] - first).to(device)]
            first += len(of.evals)
        k_valid.append(k)
        solvers.append(", ".join(sorted({of.solver for of in components})))
        n = sum(of.n for of in components)
        if k < k_eig:
            logger.info("%d of %d eigenpairs exist (one a vertex with area); the others are zero", k, k_eig)
        logger.info("%d eigenpairs of %d vertices by %s, residuals up to %.1e", k, n, solvers[-1], residuals[b].max())
    evecs = U.new_zeros(n_verts, k_eig).index_copy_(0, system.rows, U / system.root[:, None])
    valid, parts = (torch.tensor(of, device=device) for of in (k_valid, n_components))
    return Spectrum(evals.to(device), evecs, residuals.to(device), valid, parts, tuple(solvers))


def _solve(system: System, batch: Batch, convention: str) -> None:
    """Fill in the `wanted` lowest eigenpairs of each member, by the first solver whose residuals hold."""
    known = batch.null if convention == "native" else batch.null[..., :0]
    k, worst, refused = batch.wanted - known.shape[2], np.inf, list(batch.members)
    for name, solver in _solvers(batch, k):
        try:
            evals, U = solver(batch, known, k)
        except (FlashheatError, RuntimeError, ValueError, np.linalg.LinAlgError) as error:
            logger.warning("%s found no eigenpairs of %s: %s", name, _described(batch), error)
        else:
            worst = _accept(batch, refused, name, known, evals, U)
        if not refused:
            return
        if len(batch.members) > 1:
            for member in refused:
                _solve(system, batch_of(system, [member]), convention)
            return
        logger.warning("%s reached residuals of %.1e only on %s", name, worst, _described(batch))
    raise MeshError(
        f"eigenpairs must have residuals below {LARGEST_RESIDUAL:.0e}: got {worst:.1e} on {_described(batch)}; "
        "its triangles are too badly shaped, repair the mesh",
        which=batch.members[0].mesh,
    )


def _described(batch: Batch) -> str:
    one = f"a component of {batch.n} vertices"
    return one if len(batch.members) == 1 else f"{len(batch.members)} components, the largest {one}"


def _accept(batch: Batch, refused: list[Component], solver: str, known: Tensor, evals: Tensor, U: Tensor) -> float:
    """Take those members off `refused` whose residuals are small enough; the largest residual of all."""
    n_known = known.shape[2]
    evals = torch.nn.functional.pad(evals.clamp_min(0), (n_known, 0))
    U = canonical(evals, torch.cat([known, orthonormalised(U)], 2), batch.null, batch.unit)
    residuals = _residuals(batch, evals, U)
    limits = torch.full_like(residuals, LARGEST_RESIDUAL)
    if residuals.amax() > LARGEST_RESIDUAL:
        U[..., n_known:] = _relaxed(batch, evals, U)[..., n_known:]
        residuals, limits = _residuals(batch, evals, U), _rounding(batch, evals, U).clamp_min(LARGEST_RESIDUAL)
    evals, residuals, limits = evals.cpu(), residuals.cpu(), limits.cpu()
    for b, of in enumerate(batch.members):
        if not bool((residuals[b, : of.wanted] <= limits[b, : of.wanted]).all()):
            continue
        refused.remove(of)
        of.evals, of.residuals, of.solver = evals[b, : of.wanted], residuals[b, : of.wanted], solver
        of.U = U[b, : of.n, : of.wanted]
        if of.residuals.max() > LARGEST_RESIDUAL:
            logger.warning(
                "residuals up to %.1e on a component of %d vertices are above the limit of %.0e and accepted: "
                "beside its slivers rounding alone may leave %.1e; repair the mesh for smaller ones",
                of.residuals.max(), of.n, LARGEST_RESIDUAL, limits[b].max(),
            )  # fmt: skip
    return float(residuals.max())


def _residuals(batch: Batch, evals: Tensor, U: Tensor) -> Tensor:
    """[B, k] `|A u - lambda u| / max(lambda, unit)`."""
    return torch.linalg.vector_norm(batch.apply(U) - U * evals[:, None], dim=1) / evals.maximum(batch.unit)


def _rounding(batch: Batch, evals: Tensor, U: Tensor) -> Tensor:
    """[B, k] residuals that rounding may leave: a last bit of every entry of U, as A multiplies it."""
    A = batch.A
    size = (CSR(A.indptr, A.indices, A.values.abs(), A.shape).to_torch() @ U.abs().view(A.shape[0], -1)).view_as(U)
    last_bits = ROUNDING * torch.finfo(torch.float64).eps * torch.linalg.vector_norm(size, dim=1)
    return last_bits / evals.maximum(batch.unit)


def _relaxed(batch: Batch, evals: Tensor, U: Tensor) -> Tensor:
    """One Jacobi step in the stiff rows, those beside slivers.

    A solver leaves rounding of the whole vector there, which is far more than a last bit of such a row's tiny entry.
    """
    diagonal = torch.where(batch.real, batch.A.diagonal().view_as(batch.real), torch.nan)[..., None]
    stiff = diagonal > STIFF * diagonal.nanmedian(1, keepdim=True).values
    return torch.where(stiff, U - (batch.apply(U) - U * evals[:, None]) / diagonal, U)


def _solvers(batch: Batch, k: int) -> Iterator[tuple[str, Solver]]:
    """Solvers in the order in which they are tried."""
    n, on_gpu = min(of.n for of in batch.members), batch.null.is_cuda
    if k == 0:
        yield "constants", _by_dense
    elif n <= DENSE_SHARE * (k + 8) if on_gpu else is_small(n, k):
        yield "dense", _by_dense
        yield "dense-superlu", partial(_by_lanczos, factorise=superlu)  # exact too where A's entries are far apart
    else:
        if on_gpu:
            yield "subspace-multifrontal", _by_subspace
        try:
            import cholespy  # noqa: F401

            yield "lanczos-cholmod", partial(_by_lanczos, factorise=cholmod)
        except ImportError:
            logger.info("cholespy is not installed: SuperLU takes its place, several times slower")
        yield "lanczos-superlu", partial(_by_lanczos, factorise=superlu)
        if n < DENSE_RESCUE_BELOW:
            yield "dense", _by_dense


def _by_dense(batch: Batch, known: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Member by member on the CPU."""
    A, n, host_known = batch.A.to_scipy(), batch.n, known.cpu().numpy()
    evals = torch.zeros(len(batch.members), k, dtype=torch.float64)
    U = torch.zeros(len(batch.members), n, k, dtype=torch.float64)
    for b, of in enumerate(batch.members):
        rows = slice(b * n, b * n + of.n)
        found, vectors = dense(A[rows, rows], host_known[b, : of.n], k)
        evals[b] = torch.from_numpy(found)
        U[b, : of.n] = torch.from_numpy(vectors)
    return evals.to(known.device), U.to(known.device)


def _by_lanczos(
    batch: Batch, known: Tensor, k: int, factorise: Callable[[scipy.sparse.csc_array], Solve]
) -> tuple[Tensor, Tensor]:
    """Of a single component, on the CPU."""
    (null,), unit = batch.null.cpu().numpy(), float(batch.unit)
    evals, U = shift_invert(batch.A.to_scipy(), known[0].cpu().numpy(), k, null, unit, factorise)
    return torch.from_numpy(evals.copy())[None].to(known.device), torch.from_numpy(U)[None].to(known.device)


def _by_subspace(batch: Batch, known: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """On the device of the batch, from where Weyl's law has the last column's eigenvalue."""
    m, device, n_rows = k + max(8, int(GUARD * k)), known.device, batch.A.shape[0]
    shift = SHIFT * batch.unit[:, 0] * (m + known.shape[2])
    rows, columns, real = batch.A.rows(), batch.A.indices, batch.real.view(-1)
    values = batch.A.values + torch.where(rows == columns, shift[rows // batch.n], 0.0)
    number = real.cumsum(0) - 1
    i, j = number[rows], number[columns]
    root = torch.arange(n_rows, device=device)[real] // batch.n
    pattern = analyse(dissect(batch.points.view(-1, 3)[real], i, j, root, len(batch.members)), i, j)
    factors = factorise(pattern.spread(real), values)
    start = torch.randn(
        batch.n, m, dtype=torch.float64, device=device, generator=torch.Generator(device).manual_seed(0)
    )
    start = start * batch.real[..., None]
    if known.shape[2] == 0:
        start[..., :1] = batch.null
    inverse = Captured(lambda X: solve(factors, X.reshape(n_rows, -1)).view_as(X))
    return lowest_by_subspace(batch.apply, inverse, shift, batch.unit[:, 0], known, start, k)
