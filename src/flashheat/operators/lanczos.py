"""A symmetric positive definite operator becomes its largest eigenpairs, by block Lanczos with full orthogonalisation.

It is separate from the spectrum because it knows nothing of meshes. Blocks turn ARPACK's vector-by-vector work into
matrix products, and find equal eigenvalues that one start vector would miss.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashheat.errors import FlashheatError

MOST_STEPS = 1000
CHECK_EVERY = 4
ROUNDING = 1e-15
BREAKDOWN = 1e-8  # a block that shrinks this much when it is orthogonalised holds directions made of rounding


def largest_eigenpairs(
    apply: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    k: int,
    tolerance: float = 1e-10,
    most_steps: int = MOST_STEPS,
) -> tuple[np.ndarray, np.ndarray]:
    """The k largest theta of `apply(u) = theta u`, descending, and their orthonormal u [n, k].

    Thick restarts keep the basis below about 3 k + 8 blocks. Deterministic for a given start.

    Args:
        apply: [n, p] -> [n, p], symmetric.
        start: [n, p] of full rank; eigenvalues of multiplicity up to p are all found.
        k: how many, at most about n / 3.
        tolerance: of the residuals, as a share of each theta (or rounding of the largest theta, if that is more).
        most_steps: after how many blocks to give up.

    Raises:
        FlashheatError: when the residuals do not fall below the tolerance.

    Source: Wu, Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", 2000, in blocks.
    """
    n, p = start.shape
    capacity = min(n, 3 * k + 8 * p)
    Q, T, filled = np.empty((capacity, n)).T, np.zeros((capacity, capacity)), 0
    block, residuals = np.linalg.qr(start)[0], np.array([np.inf])
    for step in range(most_steps):
        new, filled = slice(filled, filled + p), filled + p
        Q[:, new] = block
        block, H, coupling = _orthogonalise(Q[:, :filled], apply(block))
        T[:filled, new], T[new, :filled] = H, H.T
        full = filled + p > capacity
        if not full and (filled < k + p or step % CHECK_EVERY):
            continue
        theta, Y = (part[..., ::-1] for part in np.linalg.eigh(T[:filled, :filled]))
        residuals = np.linalg.norm(coupling @ Y[new, :k], axis=0)
        if (residuals <= np.maximum(tolerance * theta[:k], ROUNDING * theta[0])).all():
            return theta[:k], Q[:, :filled] @ Y[:, :k]
        if full:
            filled = min(k + 2 * p, filled - p)
            Q[:, :filled] = Q[:, : len(Y)] @ Y[:, :filled]
            T[:] = np.diag(np.pad(theta[:filled], (0, capacity - filled)))
    raise FlashheatError(f"block Lanczos must converge in {most_steps} steps: the residual is {residuals.max():.1e}")


def _orthogonalise(Q: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split W = Q H + block coupling with an orthonormal block that is orthogonal to Q.

    The last two blocks of Q hold nearly all of H, so that one pass over the whole of Q mostly suffices.
    """
    size = np.linalg.norm(W)
    H = np.zeros((Q.shape[1], W.shape[1]))
    recent = Q[:, -2 * W.shape[1] :]
    H[-recent.shape[1] :] = recent.T @ W
    W = W - recent @ H[-recent.shape[1] :]
    for _ in range(3):
        rest = Q.T @ W
        W -= Q @ rest
        H += rest
        if np.linalg.norm(rest) <= 0.1 * np.linalg.norm(W):
            break
    block, coupling = np.linalg.qr(W)
    if np.abs(np.diag(coupling)).min() < BREAKDOWN * size:
        rest = Q.T @ block
        block, correction = np.linalg.qr(block - Q @ rest)
        H, coupling = H + rest @ coupling, correction @ coupling
    return block, H, coupling
