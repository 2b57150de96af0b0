"""A sparse matrix becomes its lowest eigenpairs on the CPU: by dense work, or by Lanczos on its inverse.

It is separate from the spectrum because it knows nothing of components, residuals and the order of solvers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flashheat.errors import FlashheatError
from flashheat.operators.lanczos import largest_eigenpairs

if TYPE_CHECKING:
    import scipy.sparse

logger = logging.getLogger("flashheat")

DENSE_BELOW = 500
BLOCK = 8

WEYL = 1.3  # where the filter begins, as a share of the eigenvalue that Weyl's law expects as the last one wanted
SHIFT = 0.1  # of the matrix that is factorised, as a share of where the filter begins
DEGREE = 3  # of the filter
FILTERED_TOLERANCE = 1e-8  # the last solve keeps residuals of about this size

Solve = Callable[[np.ndarray], np.ndarray]


def is_small(n: int, k: int) -> bool:
    """Whether k eigenpairs of n rows are found best by dense work."""
    return n < DENSE_BELOW or n <= 3 * k


def dense(A: scipy.sparse.csr_array, known: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenpairs orthogonal to `known`, which is lifted to the top of the spectrum."""
    import scipy.linalg

    if k == 0:
        return np.zeros(0), known[:, :0]
    full = A.toarray()
    full += 2 * np.abs(full).sum(axis=1).max() * (known @ known.T)
    evals, U = scipy.linalg.eigh(full, subset_by_index=[0, k - 1])
    return evals, U


def shift_invert(
    A: scipy.sparse.csr_array,
    known: np.ndarray,
    k: int,
    null: np.ndarray,
    unit: float,
    factorise: Callable[[scipy.sparse.csc_array], Solve],
) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenpairs orthogonal to `known`: the largest of `(A + sigma I)^-1`, restricted likewise.

    The eigenvectors are nearly orthonormal: they come from a solve after the last orthonormalisation.

    Args:
        A: [n, n] symmetric, no eigenvalue below 0.
        known: [n, j] orthonormal eigenvectors, or none.
        k: how many.
        null: [n, 1] the eigenvector of about 0, with which to start where it is not known.
        unit: by Weyl's law eigenvalue number k is about k units.
        factorise: makes the solver of a matrix.
    """
    import scipy.sparse

    n = A.shape[0]
    cut = WEYL * unit * (k + known.shape[1])
    sigma = SHIFT * cut
    solve = factorise(scipy.sparse.csc_array(A + sigma * scipy.sparse.eye_array(n)))

    def project(x: np.ndarray) -> np.ndarray:
        return x - known @ (known.T @ x)

    def apply(x: np.ndarray) -> np.ndarray:
        return project(solve(x))  # of an x without `known`

    if is_small(n, k):
        inverse = apply(project(np.eye(n)))
        theta, U = (part[..., : -k - 1 : -1] for part in np.linalg.eigh((inverse + inverse.T) / 2))
        return 1 / theta - sigma, project(solve(U) / theta)
    start = np.random.default_rng(0).standard_normal((n, BLOCK))
    if known.shape[1] == 0:
        start[:, :1] = null
    U = _filtered_lanczos(apply, project(start), k, 1 / (cut + sigma))
    inverse_U = apply(U)
    theta, turn = (part[..., ::-1] for part in np.linalg.eigh(U.T @ inverse_U))
    return 1 / theta - sigma, inverse_U @ turn / theta


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


def cholmod(A: scipy.sparse.csc_array) -> Solve:
    """What solves for A, by the factors of CHOLMOD (package cholespy)."""
    import cholespy

    solver = cholespy.CholeskySolverD(A.shape[0], A.indptr, A.indices, A.data, cholespy.MatrixType.CSC)

    def solve(b: np.ndarray) -> np.ndarray:
        x = np.empty(b.shape)
        solver.solve(np.ascontiguousarray(b), x)
        return x

    return solve


def superlu(A: scipy.sparse.csc_array) -> Solve:
    """What solves for A, by the factors of SuperLU (SciPy)."""
    from scipy.sparse.linalg import splu

    factors = splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return factors.solve
