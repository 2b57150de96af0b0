"""The inverse of a shifted matrix becomes the matrix' lowest eigenpairs: Chebyshev-filtered subspace iteration.

It is separate because it knows neither meshes nor how the inverse is applied. All columns go through each step
together, which is what a GPU wants; on a CPU block Lanczos needs fewer solves.

Source: Zhou, Saad, Tiago, Chelikowsky, "Self-consistent-field calculations using Chebyshev-filtered subspace
iteration", 2006, with the inverse in place of the matrix: the degree then does not grow with its largest eigenvalue.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

GUARD = 0.4  # columns beyond those wanted, as a share of them
FIRST_GROWTH = 1e10  # of the lowest eigenvector beside the last: what orthonormalisation of random columns stands
GROWTH = 1e14  # of Ritz vectors, each of which is scaled first
SHIFT = 1e-14  # of products of unit columns, where rounding makes them indefinite
TOLERANCE = 1e-7  # of the residuals
MOST_PASSES = 12
STALLED = 0.2  # a pass that leaves more than this share of the residual was the last

Apply = Callable[[Tensor], Tensor]


def lowest_by_subspace(
    apply: Apply, solve: Apply, known: Tensor, start: Tensor, k: int, shift: float, cut: float, unit: float
) -> tuple[Tensor, Tensor]:
    """The k lowest eigenpairs `A u = lambda u` orthogonal to known ones, ascending, u [n, k] orthonormal.

    Passes end when residuals `|A u - lambda u| / max(lambda, unit)` are below 1e-7, or fall no further. Converged
    columns are locked: they join the known ones.

    Args:
        apply: `A x`.
        solve: `(A + shift)^-1 x`.
        known: [n, j] orthonormal eigenvectors.
        start: [n, m] random columns, m > k.
        k: how many.
        shift: of `solve`; about `cut` suits.
        cut: about the m-th eigenvalue; after the first pass it follows the eigenvalues found.
        unit: eigenvalues below it count as it.
    """
    m, n_known, top, growth, before = start.shape[1], known.shape[1], 1 / shift, FIRST_GROWTH, math.inf
    X, found = start, torch.zeros(0, dtype=start.dtype, device=start.device)
    for _ in range(MOST_PASSES):
        X = _orthonormal(_filtered(solve, X, top, 1 / (cut + shift), growth), known)
        W = solve(X)
        W = W - known @ (known.mT @ W)
        theta, turn = (of.to(X.device).flip(-1) for of in torch.linalg.eigh((X.mT @ W).cpu()))
        X, evals = orthonormalised(W @ (turn / theta)), 1 / theta - shift
        wanted = k - len(found)
        U, scale = X[:, :wanted], evals[:wanted].clamp_min(unit)
        residuals = torch.linalg.vector_norm(apply(U) - U * evals[:wanted], dim=0) / scale
        worst, n_converged = float(residuals.max()), int((residuals <= TOLERANCE).long().cumprod(0).sum())
        if n_converged == wanted or worst > STALLED * before:
            break
        if not len(found):  # later the lowest are locked, but what these lack of the true ones grows as they would
            top = float(theta[0])
        known, found = torch.cat([known, X[:, :n_converged]], 1), torch.cat([found, evals[:n_converged]])
        X, before, growth = X[:, n_converged:], worst, GROWTH
        cut = 0.97 * float(evals[wanted - 1]) * (m + n_known) / (k + n_known)
    evals, order = torch.cat([found, evals[:wanted]]).sort(stable=True)
    return evals, torch.cat([known[:, n_known:], U], 1)[:, order]


def orthonormalised(U: Tensor) -> Tensor:
    """The nearest orthonormal columns to nearly orthonormal ones, by one Newton step.

    After one more solve it leaves each column alone but for tiny corrections, where QR would mix in rounding of all
    the others: that shows, a thousandfold, in the residuals beside slivers.
    """
    U = U / torch.linalg.vector_norm(U, dim=0)
    return 1.5 * U - 0.5 * (U @ (U.mT @ U))


def _filtered(solve: Apply, X: Tensor, top: float, edge: float, growth: float) -> Tensor:
    """A Chebyshev polynomial of the inverse that is at most 1 below `edge`, of a degree that lets `top` grow so far."""
    degree = max(1, int(math.log(growth) / math.acosh(max(2 * top / edge - 1, 1.01))))
    before, now = X, (2 / edge) * solve(X) - X
    for _ in range(degree - 1):
        before, now = now, (4 / edge) * solve(now) - 2 * now - before
    return now


def _orthonormal(X: Tensor, known: Tensor) -> Tensor:
    """Columns orthonormal and orthogonal to the known ones, by Cholesky factors of their products, twice.

    Source: Fukaya et al., "Shifted Cholesky QR for computing the QR factorization of ill-conditioned matrices", 2020.
    """
    for _ in range(2):
        X = X - known @ (known.mT @ X)
        X = X / torch.linalg.vector_norm(X, dim=0)
        R, info = torch.linalg.cholesky_ex(X.mT @ X, upper=True)
        if bool(info):
            shift = SHIFT * X.shape[1] * torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
            X = torch.linalg.solve_triangular(
                torch.linalg.cholesky(X.mT @ X + shift, upper=True), X, upper=True, left=False
            )
            R = torch.linalg.cholesky(X.mT @ X, upper=True)
        X = torch.linalg.solve_triangular(R, X, upper=True, left=False)
    return X
