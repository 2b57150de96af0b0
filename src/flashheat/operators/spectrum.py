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

from flashheat.errors import FlashheatError, MeshError
from flashheat.operators.lanczos import largest_eigenpairs

if TYPE_CHECKING:
    import scipy.sparse

logger = logging.getLogger("flashheat")

DENSE_BELOW = 500
DENSE_RESCUE_BELOW = 4000
LARGEST_RESIDUAL = 1e-6
ROUNDING = 4  # last bits of U that a residual above the limit may be worth: solver and evaluation have one or two each
STIFF = 1e6  # times the median of A's diagonal
UPSTREAM_SHIFT = 1e-8
BLOCK = 8

WEYL = 1.3  # where the filter begins, as a share of the eigenvalue that Weyl's law expects as the last one wanted
SHIFT = 0.1  # of the matrix that is factorised, as a share of where the filter begins
DEGREE = 3  # of the filter
FILTERED_TOLERANCE = 1e-8  # the last solve keeps residuals of about this size

Solve = Callable[[np.ndarray], np.ndarray]
Solver = Callable[["_Component", np.ndarray, int], tuple[np.ndarray, np.ndarray]]


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

    evals: np.ndarray
    evecs: np.ndarray
    residuals: np.ndarray
    k_valid: int
    solver: str


@dataclass
class _Component:
    """One connected component in standard form, `A = M^-1/2 L M^-1/2`, and what is known of its spectrum."""

    A: scipy.sparse.csr_array
    null: np.ndarray  # [n, 1] sqrt(mass), unit length: the eigenvector of eigenvalue 0
    rows: slice
    unit: float  # 4 pi / area
    wanted: int
    evals: np.ndarray
    U: np.ndarray
    residuals: np.ndarray
    solver: str = ""


def lowest_eigenpairs(
    L: scipy.sparse.csr_array, mass: np.ndarray, labels: np.ndarray, k_eig: int, convention: str
) -> Spectrum:
    """The lowest k_eig eigenpairs on the vertices of positive mass; fewer vertices than that: padded with zeros.

    Args:
        L: [V, V].
        mass: [V] > 0 where a vertex has area, else 0.
        labels: [V] the connected component of each vertex (ignored where mass is 0).
        k_eig: K.
        convention: natively the constant on each component is exact, with eigenvalue 0; more than K components: the
            smallest share the last constant. "diffusion_net" adds 1e-8 I to L.

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
        evals, U, residuals, solver = _constants_only(L, root, bounds, k)
    else:
        evals, U, residuals, solver = _merged(L, root, bounds, k, convention)
    logger.info("%d eigenpairs of %d vertices by %s, residuals up to %.1e", k, len(rows), solver, residuals.max())
    evecs = np.zeros((len(mass), k_eig))
    evecs[rows, :k] = U / root[:, None]
    return Spectrum(_padded(evals, k_eig), _fix_signs(evecs), _padded(residuals, k_eig), k, solver)


def _by_component(labels: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vertices component after component, the largest area first, and where each component begins."""
    _, component, size = np.unique(labels, return_inverse=True, return_counts=True)
    by_area = np.argsort(-np.bincount(component, mass), kind="stable")
    rank = np.argsort(by_area, kind="stable")
    return np.argsort(rank[component], kind="stable"), np.concatenate([[0], np.cumsum(size[by_area])])


def _constants_only(
    L: scipy.sparse.csr_array, root: np.ndarray, bounds: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """As many components as eigenpairs: one constant each, and one for all the smallest together."""
    U = np.zeros((len(root), k))
    for column, (start, stop) in enumerate(pairwise([*bounds[:k], len(root)])):
        U[start:stop, column] = root[start:stop] / np.linalg.norm(root[start:stop])
    residuals = np.linalg.norm((L @ (U / root[:, None])) / root[:, None], axis=0) * (root @ root) / (4 * np.pi)
    return np.zeros(k), U, residuals, "constants"


def _merged(
    L: scipy.sparse.csr_array, root: np.ndarray, bounds: np.ndarray, k: int, convention: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Solve the components, more of each until the k lowest of all are surely among them, and take those."""
    components = list(_components(L, root, bounds, k, convention))
    growing = components
    while growing:
        for component in growing:
            _solve(component, convention)
        found = np.sort(np.concatenate([component.evals for component in components]))
        cut = found[k - 1] if len(found) >= k else np.inf
        growing = [c for c in components if c.wanted < min(k, c.A.shape[0]) and c.evals[-1] <= cut]
        for component in growing:
            component.wanted = min(2 * component.wanted, k, component.A.shape[0])
    evals, residuals = (np.concatenate([getattr(c, name) for c in components]) for name in ("evals", "residuals"))
    lowest = np.argsort(evals, kind="stable")[:k]
    U, first = np.zeros((len(root), k)), 0
    for component in components:
        columns = np.flatnonzero((lowest >= first) & (lowest < first + len(component.evals)))
        U[component.rows, columns] = component.U[:, lowest[columns] - first]
        first += len(component.evals)
    return evals[lowest], U, residuals[lowest], ", ".join(sorted({c.solver for c in components}))


def _components(
    L: scipy.sparse.csr_array, root: np.ndarray, bounds: np.ndarray, k: int, convention: str
) -> Iterator[_Component]:
    """Each component with a first guess, by Weyl's law, of how many of the k lowest eigenpairs are its own."""
    import scipy.sparse

    if convention == "diffusion_net":
        L = L + UPSTREAM_SHIFT * scipy.sparse.eye_array(len(root))
    A = (scipy.sparse.diags_array(1 / root) @ L @ scipy.sparse.diags_array(1 / root)).tocsr()
    total, nothing = root @ root, np.zeros(0)
    for start, stop in pairwise(bounds):
        rows = slice(int(start), int(stop))
        null, area = root[rows, None] / np.linalg.norm(root[rows]), root[rows] @ root[rows]
        wanted = min(k, rows.stop - rows.start, int(1.2 * k * area / total) + 4)
        yield _Component(A[rows][:, rows], null, rows, 4 * np.pi / area, wanted, nothing, nothing, nothing)


def _solve(component: _Component, convention: str) -> None:
    """Fill in the `wanted` lowest eigenpairs, by the first solver whose residuals hold."""
    n, worst = component.A.shape[0], np.inf
    known = component.null if convention == "native" else component.null[:, :0]
    for name, solver in _solvers(n, component.wanted - known.shape[1]):
        try:
            evals, U = solver(component, known, component.wanted - known.shape[1])
        except (FlashheatError, RuntimeError, ValueError, np.linalg.LinAlgError) as error:
            logger.warning("%s found no eigenpairs of a component of %d vertices: %s", name, n, error)
            continue
        evals = np.maximum(np.concatenate([np.zeros(known.shape[1]), evals]), 0.0)
        U = np.concatenate([known, U], axis=1)
        residuals, rounding = _residuals(component, evals, U)
        if residuals.max() > LARGEST_RESIDUAL:
            U[:, known.shape[1] :] = _relaxed(component, evals, U)[:, known.shape[1] :]
            residuals, rounding = _residuals(component, evals, U)
        worst = float(residuals.max())
        if (residuals <= np.maximum(LARGEST_RESIDUAL, rounding)).all():
            component.evals, component.U, component.residuals, component.solver = evals, U, residuals, name
            if worst > LARGEST_RESIDUAL:
                logger.warning(
                    "residuals up to %.1e on a component of %d vertices are above the limit of %.0e and accepted: "
                    "beside its slivers rounding alone may leave %.1e; repair the mesh for smaller ones",
                    worst, n, LARGEST_RESIDUAL, rounding.max(),
                )  # fmt: skip
            return
        logger.warning("%s reached residuals of %.1e only on a component of %d vertices", name, worst, n)
    raise MeshError(
        f"eigenpairs must have residuals below {LARGEST_RESIDUAL:.0e}: got {worst:.1e} on a component of {n} vertices; "
        "its triangles are too badly shaped, repair the mesh"
    )


def _residuals(component: _Component, evals: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[k] residuals, and those that rounding may leave: a last bit of every entry of U, as A multiplies it."""
    scale = np.maximum(evals, component.unit)
    rounding = ROUNDING * np.finfo(float).eps * np.linalg.norm(abs(component.A) @ np.abs(U), axis=0)
    return np.linalg.norm(component.A @ U - U * evals, axis=0) / scale, rounding / scale


def _relaxed(component: _Component, evals: np.ndarray, U: np.ndarray) -> np.ndarray:
    """One Jacobi step in the stiff rows, those beside slivers.

    A solver leaves rounding of the whole vector there, which is far more than a last bit of such a row's tiny entry.
    """
    diagonal = component.A.diagonal()
    stiff = np.flatnonzero(diagonal > STIFF * np.median(diagonal))
    relaxed = U.copy()
    relaxed[stiff] -= (component.A[stiff] @ U - U[stiff] * evals) / diagonal[stiff, None]
    return relaxed


def _solvers(n: int, k: int) -> Iterator[tuple[str, Solver]]:
    """Solvers in the order in which they are tried."""
    if k == 0:
        yield "constants", _dense
    elif _is_small(n, k):
        yield "dense", _dense
        yield "dense-superlu", partial(_shift_invert, factorise=_superlu)  # exact too where A's entries are far apart
    else:
        try:
            import cholespy  # noqa: F401

            yield "lanczos-cholmod", partial(_shift_invert, factorise=_cholmod)
        except ImportError:
            logger.info("cholespy is not installed: SuperLU takes its place, several times slower")
        yield "lanczos-superlu", partial(_shift_invert, factorise=_superlu)
        if n < DENSE_RESCUE_BELOW:
            yield "dense", _dense


def _is_small(n: int, k: int) -> bool:
    return n < DENSE_BELOW or n <= 3 * k


def _dense(component: _Component, known: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenpairs orthogonal to `known`, which is lifted to the top of the spectrum."""
    import scipy.linalg

    if k == 0:
        return np.zeros(0), known[:, :0]
    A = component.A.toarray()
    A += 2 * np.abs(A).sum(axis=1).max() * (known @ known.T)
    evals, U = scipy.linalg.eigh(A, subset_by_index=[0, k - 1])
    return evals, U


def _shift_invert(
    component: _Component, known: np.ndarray, k: int, factorise: Callable[[scipy.sparse.csc_array], Solve]
) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenpairs orthogonal to `known`: the largest of `(A + sigma I)^-1`, restricted likewise."""
    import scipy.sparse

    n = component.A.shape[0]
    cut = WEYL * component.unit * (k + known.shape[1])
    sigma = SHIFT * cut
    solve = factorise(scipy.sparse.csc_array(component.A + sigma * scipy.sparse.eye_array(n)))

    def project(x: np.ndarray) -> np.ndarray:
        return x - known @ (known.T @ x)

    def apply(x: np.ndarray) -> np.ndarray:
        return project(solve(x))  # of an x without `known`

    if _is_small(n, k):
        inverse = apply(project(np.eye(n)))
        theta, U = (part[..., : -k - 1 : -1] for part in np.linalg.eigh((inverse + inverse.T) / 2))
        return 1 / theta - sigma, _orthonormal(project(solve(U) / theta))
    start = np.random.default_rng(0).standard_normal((n, BLOCK))
    if known.shape[1] == 0:
        start[:, :1] = component.null
    U = _filtered_lanczos(apply, project(start), k, 1 / (cut + sigma))
    inverse_U = apply(U)
    theta, turn = (part[..., ::-1] for part in np.linalg.eigh(U.T @ inverse_U))
    return 1 / theta - sigma, _orthonormal(inverse_U @ turn / theta)


def _filtered_lanczos(apply: Solve, start: np.ndarray, k: int, theta_cut: float) -> np.ndarray:
    """The eigenvectors [n, k] of the k largest eigenvalues of `apply`, which should lie above `theta_cut`.

    A Chebyshev polynomial holds all that is below between -1 and 1 and lets grow what is above: Lanczos then needs
    hardly more vectors than are wanted. It costs a few more solves, which are cheaper than to orthogonalise.
    """

    def filtered(x: np.ndarray) -> np.ndarray:
        before, now = x, (2 / theta_cut) * apply(x) - x
        for _ in range(DEGREE - 1):
            before, now = now, (4 / theta_cut) * apply(now) - 2 * now - before
        return now

    try:
        mu, U = largest_eigenpairs(filtered, start, k, FILTERED_TOLERANCE, most_steps=2 * k // start.shape[1] + 20)
        if mu[-1] > 1:
            return U
    except FlashheatError:
        pass
    logger.info("fewer than %d eigenvalues lie where Weyl's law has them: they are sought without a filter", k)
    return largest_eigenpairs(apply, start, k)[1]


def _orthonormal(U: np.ndarray) -> np.ndarray:
    """The nearest orthonormal columns to nearly orthonormal ones, by one Newton step.

    After one more solve it leaves each column alone but for tiny corrections, where QR would mix in rounding of all
    the others: that shows, a thousandfold, in the residuals beside slivers.
    """
    U = U / np.linalg.norm(U, axis=0)
    return U @ (1.5 * np.eye(U.shape[1]) - 0.5 * (U.T @ U))


def _cholmod(A: scipy.sparse.csc_array) -> Solve:
    import cholespy

    solver = cholespy.CholeskySolverD(A.shape[0], A.indptr, A.indices, A.data, cholespy.MatrixType.CSC)

    def solve(b: np.ndarray) -> np.ndarray:
        x = np.empty(b.shape)
        solver.solve(np.ascontiguousarray(b), x)
        return x

    return solve


def _superlu(A: scipy.sparse.csc_array) -> Solve:
    from scipy.sparse.linalg import splu

    factors = splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return factors.solve


def _fix_signs(evecs: np.ndarray) -> np.ndarray:
    """Make each column's entry of largest magnitude positive, so that machines agree where they can.

    On a symmetric mesh entries of both signs are largest but for rounding: then the first of them decides.
    """
    size = np.abs(evecs)
    largest = (size >= (1 - 1e-6) * size.max(axis=0)).argmax(axis=0)
    return evecs * np.where(evecs[largest, np.arange(evecs.shape[1])] < 0, -1.0, 1.0)


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    return np.pad(values, (0, size - len(values)))
