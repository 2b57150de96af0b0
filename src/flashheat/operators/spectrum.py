"""The weak Laplacian and the lumped areas become the lowest eigenpairs, with the residuals that prove them.

It is separate because finding eigenpairs is the slow and fragile step of the pipeline. Heat does not cross connected
components, so each is solved alone: equal parts then cannot hide one another's equal eigenvalues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import FlashheatError, MeshError
from flashheat.operators.csr import CSR
from flashheat.operators.dissection import dissect
from flashheat.operators.multifrontal import analyse, factorise, solve
from flashheat.operators.shift_invert import Solve, cholmod, dense, is_small, shift_invert, superlu
from flashheat.operators.subspace import GUARD, lowest_by_subspace, orthonormalised

if TYPE_CHECKING:
    import scipy.sparse

logger = logging.getLogger("flashheat")

DENSE_RESCUE_BELOW = 4000
LARGEST_RESIDUAL = 1e-6
ROUNDING = 4  # last bits of U that a residual above the limit may be worth: solver and evaluation have one or two each
STIFF = 1e6  # times the median of A's diagonal
UPSTREAM_SHIFT = 1e-8

Solver = Callable[["_Component", Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of `L phi = lambda M phi`, zero-padded to K columns.

    Args:
        evals: [K] ascending.
        evecs: [V, K], mass-orthonormal, the (first) entry of largest magnitude positive in each column.
        residuals: [K], `|L phi - lambda M phi|_{M^-1} / max(lambda_k, 4 pi / area)`, area of the component.
        k_valid: how many columns are real.
        solver: what found them.
    """

    evals: Tensor
    evecs: Tensor
    residuals: Tensor
    k_valid: int
    solver: str


@dataclass
class _Component:
    """One connected component in standard form, `A = M^-1/2 L M^-1/2`, and what is known of its spectrum."""

    A: scipy.sparse.csr_array
    on_device: Tensor  # A, as PyTorch has it
    points: Tensor  # [n, 3]
    null: Tensor  # [n, 1] sqrt(mass), unit length: the eigenvector of eigenvalue 0
    rows: slice
    unit: float  # 4 pi / area
    wanted: int
    evals: Tensor
    U: Tensor
    residuals: Tensor
    solver: str = ""


def lowest_eigenpairs(
    L: scipy.sparse.csr_array,
    mass: np.ndarray,
    points: np.ndarray,
    labels: np.ndarray,
    k_eig: int,
    convention: str,
    device: torch.device | str = "cpu",
) -> Spectrum:
    """The lowest k_eig eigenpairs on the vertices of positive mass; fewer vertices than that: padded with zeros.

    Args:
        L: [V, V].
        mass: [V] > 0 where a vertex has area, else 0.
        points: [V, 3] where the vertices are.
        labels: [V] the connected component of each vertex (ignored where mass is 0).
        k_eig: K.
        convention: natively the constant on each component is exact, with eigenvalue 0; more than K components: the
            smallest share the last constant. "diffusion_net" adds 1e-8 I to L.
        device: where the work is done and the result stays.

    Raises:
        MeshError: when no solver reaches residuals of 1e-6, or of a few last bits beside slivers (a warning says).
    """
    active = np.flatnonzero(mass > 0)
    order, bounds = _by_component(labels[active], mass[active])
    rows, k = active[order], min(k_eig, len(active))
    if k < k_eig:
        logger.info("%d of %d eigenpairs exist (one a vertex with area); the others are zero", k, k_eig)
    root, L = np.sqrt(mass[rows]), L[rows][:, rows]
    if convention == "native" and len(bounds) - 1 >= k:
        evals, U, residuals, solver = _constants_only(L, root, bounds, k, device)
    else:
        components = list(_components(L, root, points[rows], bounds, k, convention, device))
        evals, U, residuals, solver = _merged(components, len(root), k, convention)
    logger.info("%d eigenpairs of %d vertices by %s, residuals up to %.1e", k, len(rows), solver, residuals.max())
    evecs = U.new_zeros(len(mass), k_eig)
    evecs[torch.from_numpy(rows).to(device), :k] = U / torch.from_numpy(root).to(device)[:, None]
    return Spectrum(_padded(evals, k_eig), _fix_signs(evecs), _padded(residuals, k_eig), k, solver)


def _by_component(labels: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vertices component after component, the largest area first, and where each component begins."""
    _, component, size = np.unique(labels, return_inverse=True, return_counts=True)
    by_area = np.argsort(-np.bincount(component, mass), kind="stable")
    rank = np.argsort(by_area, kind="stable")
    return np.argsort(rank[component], kind="stable"), np.concatenate([[0], np.cumsum(size[by_area])])


def _constants_only(
    L: scipy.sparse.csr_array, root: np.ndarray, bounds: np.ndarray, k: int, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor, str]:
    """As many components as eigenpairs: one constant each, and one for all the smallest together."""
    U = np.zeros((len(root), k))
    for column, (start, stop) in enumerate(pairwise([*bounds[:k], len(root)])):
        U[start:stop, column] = root[start:stop] / np.linalg.norm(root[start:stop])
    residuals = np.linalg.norm((L @ (U / root[:, None])) / root[:, None], axis=0) * (root @ root) / (4 * np.pi)
    evals, of_device, small = (torch.from_numpy(of).to(device) for of in (np.zeros(k), U, residuals))
    return evals, of_device, small, "constants"


def _merged(components: list[_Component], n: int, k: int, convention: str) -> tuple[Tensor, Tensor, Tensor, str]:
    """Solve the components, more of each until the k lowest of all are surely among them, and take those."""
    growing = components
    while growing:
        for component in growing:
            _solve(component, convention)
        found = torch.cat([component.evals for component in components]).sort().values
        cut = float(found[k - 1]) if len(found) >= k else np.inf
        growing = [c for c in components if c.wanted < min(k, c.A.shape[0]) and float(c.evals[-1]) <= cut]
        for component in growing:
            component.wanted = min(2 * component.wanted, k, component.A.shape[0])
    evals, residuals = (torch.cat([getattr(c, name) for c in components]) for name in ("evals", "residuals"))
    lowest = evals.argsort(stable=True)[:k]
    U, first = evals.new_zeros(n, k), 0
    for component in components:
        columns = ((lowest >= first) & (lowest < first + len(component.evals))).nonzero()[:, 0]
        U[component.rows, columns] = component.U[:, lowest[columns] - first]
        first += len(component.evals)
    return evals[lowest], U, residuals[lowest], ", ".join(sorted({c.solver for c in components}))


def _components(
    L: scipy.sparse.csr_array,
    root: np.ndarray,
    points: np.ndarray,
    bounds: np.ndarray,
    k: int,
    convention: str,
    device: torch.device | str,
) -> Iterator[_Component]:
    """Each component with a first guess, by Weyl's law, of how many of the k lowest eigenpairs are its own."""
    import scipy.sparse

    if convention == "diffusion_net":
        L = L + UPSTREAM_SHIFT * scipy.sparse.eye_array(len(root))
    A = (scipy.sparse.diags_array(1 / root) @ L @ scipy.sparse.diags_array(1 / root)).tocsr()
    total, nothing = root @ root, torch.zeros(0, dtype=torch.float64, device=device)
    for start, stop in pairwise(bounds):
        rows = slice(int(start), int(stop))
        null, area = root[rows, None] / np.linalg.norm(root[rows]), root[rows] @ root[rows]
        wanted = min(k, rows.stop - rows.start, int(1.2 * k * area / total) + 4)
        part = A[rows][:, rows]
        places, null_vector = (torch.from_numpy(np.array(of, np.float64)).to(device) for of in (points[rows], null))
        yield _Component(
            part,
            _as_torch(part, device),
            places,
            null_vector,
            rows,
            4 * np.pi / area,
            wanted,
            nothing,
            nothing,
            nothing,
        )


def _as_torch(A: scipy.sparse.csr_array, device: torch.device | str) -> Tensor:
    return CSR.from_scipy(A).map(lambda of: of.to(device)).to_torch()


def _solve(component: _Component, convention: str) -> None:
    """Fill in the `wanted` lowest eigenpairs, by the first solver whose residuals hold."""
    n, worst = component.A.shape[0], np.inf
    known = component.null if convention == "native" else component.null[:, :0]
    n_known = known.shape[1]
    for name, solver in _solvers(component, component.wanted - n_known):
        try:
            evals, U = solver(component, known, component.wanted - n_known)
        except (FlashheatError, RuntimeError, ValueError, np.linalg.LinAlgError) as error:
            logger.warning("%s found no eigenpairs of a component of %d vertices: %s", name, n, error)
            continue
        evals = torch.cat([evals.new_zeros(n_known), evals.clamp_min(0)])
        U = torch.cat([known, orthonormalised(U)], dim=1)
        residuals, limits = _residuals(component, evals, U), torch.tensor(LARGEST_RESIDUAL)
        if residuals.max() > LARGEST_RESIDUAL:
            U[:, n_known:] = _relaxed(component, evals, U)[:, n_known:]
            residuals, limits = (
                _residuals(component, evals, U),
                _rounding(component, evals, U).clamp_min(LARGEST_RESIDUAL),
            )
        worst = float(residuals.max())
        if bool((residuals <= limits.to(residuals.device)).all()):
            component.evals, component.U, component.residuals, component.solver = evals, U, residuals, name
            if worst > LARGEST_RESIDUAL:
                logger.warning(
                    "residuals up to %.1e on a component of %d vertices are above the limit of %.0e and accepted: "
                    "beside its slivers rounding alone may leave %.1e; repair the mesh for smaller ones",
                    worst, n, LARGEST_RESIDUAL, limits.max(),
                )  # fmt: skip
            return
        logger.warning("%s reached residuals of %.1e only on a component of %d vertices", name, worst, n)
    raise MeshError(
        f"eigenpairs must have residuals below {LARGEST_RESIDUAL:.0e}: got {worst:.1e} on a component of {n} vertices; "
        "its triangles are too badly shaped, repair the mesh"
    )


def _residuals(component: _Component, evals: Tensor, U: Tensor) -> Tensor:
    """[k] `|A u - lambda u| / max(lambda, unit)`."""
    return torch.linalg.vector_norm(component.on_device @ U - U * evals, dim=0) / evals.clamp_min(component.unit)


def _rounding(component: _Component, evals: Tensor, U: Tensor) -> Tensor:
    """[k] residuals that rounding may leave: a last bit of every entry of U, as A multiplies it."""
    size = _as_torch(abs(component.A), U.device) @ U.abs()
    last_bits = ROUNDING * torch.finfo(torch.float64).eps * torch.linalg.vector_norm(size, dim=0)
    return last_bits / evals.clamp_min(component.unit)


def _relaxed(component: _Component, evals: Tensor, U: Tensor) -> Tensor:
    """One Jacobi step in the stiff rows, those beside slivers.

    A solver leaves rounding of the whole vector there, which is far more than a last bit of such a row's tiny entry.
    """
    diagonal = torch.from_numpy(component.A.diagonal()).to(U.device)[:, None]
    off = (component.on_device @ U - U * evals) / diagonal
    return torch.where(diagonal > STIFF * diagonal.median(), U - off, U)


def _solvers(component: _Component, k: int) -> Iterator[tuple[str, Solver]]:
    """Solvers in the order in which they are tried."""
    n = component.A.shape[0]
    if k == 0:
        yield "constants", _by_dense
    elif is_small(n, k):
        yield "dense", _by_dense
        yield "dense-superlu", partial(_by_lanczos, factorise=superlu)  # exact too where A's entries are far apart
    else:
        if component.null.device.type == "cuda":
            yield "subspace-multifrontal", _by_subspace
        try:
            import cholespy  # noqa: F401

            yield "lanczos-cholmod", partial(_by_lanczos, factorise=cholmod)
        except ImportError:
            logger.info("cholespy is not installed: SuperLU takes its place, several times slower")
        yield "lanczos-superlu", partial(_by_lanczos, factorise=superlu)
        if n < DENSE_RESCUE_BELOW:
            yield "dense", _by_dense


def _by_dense(component: _Component, known: Tensor, k: int) -> tuple[Tensor, Tensor]:
    evals, U = dense(component.A, known.cpu().numpy(), k)
    return torch.from_numpy(evals).to(known.device), torch.from_numpy(U).to(known.device)


def _by_lanczos(
    component: _Component, known: Tensor, k: int, factorise: Callable[[scipy.sparse.csc_array], Solve]
) -> tuple[Tensor, Tensor]:
    null = component.null.cpu().numpy()
    evals, U = shift_invert(component.A, known.cpu().numpy(), k, null, component.unit, factorise)
    return torch.from_numpy(evals.copy()).to(known.device), torch.from_numpy(U).to(known.device)


def _by_subspace(component: _Component, known: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """On the device of the component; where Weyl's law has the last column's eigenvalue is also the shift."""
    import scipy.sparse

    n, m, device = component.A.shape[0], k + max(8, int(GUARD * k)), known.device
    cut = component.unit * (m + known.shape[1])
    shifted = _as_torch((component.A + cut * scipy.sparse.eye_array(n)).tocsr(), device)
    numbers = torch.arange(n, device=device)
    i, j = numbers.repeat_interleave(shifted.crow_indices().diff()), shifted.col_indices()
    pattern = analyse(dissect(component.points, i, j, torch.zeros_like(numbers), 1), i, j)
    factors = factorise(pattern, shifted.values())
    start = torch.randn(n, m, dtype=torch.float64, device=device, generator=torch.Generator(device).manual_seed(0))
    if known.shape[1] == 0:
        start[:, :1] = component.null
    return lowest_by_subspace(
        lambda x: component.on_device @ x, partial(solve, factors), known, start, k, cut, cut, component.unit
    )


def _fix_signs(evecs: Tensor) -> Tensor:
    """Make each column's entry of largest magnitude positive, so that machines agree where they can.

    On a symmetric mesh entries of both signs are largest but for rounding: then the first of them decides.
    """
    size = evecs.abs()
    largest = (size >= (1 - 1e-6) * size.amax(0)).byte().argmax(0, keepdim=True)
    return evecs * torch.where(evecs.gather(0, largest) < 0, -1.0, 1.0)


def _padded(values: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)))
