"""The inverses of shifted matrices become the matrices' lowest eigenpairs: Chebyshev-filtered subspace iteration.

It is separate because it knows neither meshes nor how the inverse is applied. All columns of a batch of matrices go
through each step together, which is what a GPU wants; on a CPU block Lanczos needs fewer solves.

Source: Zhou, Saad, Tiago, Chelikowsky, "Self-consistent-field calculations using Chebyshev-filtered subspace
iteration", 2006, with the inverse in place of the matrix: the degree then does not grow with its largest eigenvalue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

GUARD = 0.4  # columns beyond those wanted, as a share of them
SHIFT = 0.5  # of the inverse, as a share of the first cut: with a smaller one less growth brings the same convergence
FIRST_GROWTH = 1e10  # of the lowest eigenvector beside the last: what orthonormalisation of random columns stands
GROWTH = 1e14  # of Ritz vectors, each of which is scaled first
LEAST = 1.01  # a Chebyshev polynomial's variable at what is to grow: bounds its degree
ROUNDING = 1e-14  # of products of unit columns: as much is added where they are indefinite
TOLERANCE = 1e-7  # of the residuals
AIM = 3e-8  # of a pass after the first
MOST_PASSES = 12
STALLED = 0.2  # a pass that leaves more than this share of the residual was the last

Apply = Callable[[Tensor], Tensor]


def lowest_by_subspace(
    apply: Apply, solve: Apply, shift: Tensor, unit: Tensor, known: Tensor, start: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Of each of B matrices the k lowest `A u = lambda u` orthogonal to known ones, ascending, u [B, n, k] orthonormal.

    Passes end when residuals `|A u - lambda u| / max(lambda, unit)` are below 1e-7, or fall no further. Columns that
    have converged in all of the batch are locked: they join the known ones.

    Args:
        apply: `A x` of each matrix [B, n, m].
        solve: `(A + shift)^-1 x`.
        shift: [B] of `solve`: the first filter begins at twice as much, where the m-th eigenvalue should be; later ones
            where it is.
        unit: [B] eigenvalues below it count as it.
        known: [B, n, j] orthonormal eigenvectors.
        start: [B, n, m] random columns, m > k.
        k: how many.
    """
    m, n_known, before = start.shape[2], known.shape[2], math.inf
    shift, unit = shift[:, None], unit[:, None]
    cut, degree = shift / SHIFT, _degree(FIRST_GROWTH, 1 + 1 / SHIFT)
    X, found = start, start.new_zeros(len(start), 0)
    for _ in range(MOST_PASSES):
        X = _orthonormal(_filtered(solve, X, 1 / (cut + shift), degree), known)
        W = solve(X)
        W = W - known @ (known.mT @ W)
        theta, turn = _eigh(X.mT @ W)
        X, evals = orthonormalised(W @ (turn / theta[:, None])), 1 / theta - shift
        wanted = k - found.shape[1]
        U, values = X[..., :wanted], evals[:, :wanted]
        residuals = torch.linalg.vector_norm(apply(U) - U * values[:, None], dim=1) / values.maximum(unit)
        worst, n_converged = torch.stack(
            [residuals.amax(), (residuals <= TOLERANCE).double().cumprod(1).sum(1).amin()]
        ).tolist()
        if n_converged == wanted or worst > STALLED * before:
            break
        if not found.shape[1]:  # later the lowest are locked, but what these lack of the true ones grows as they would
            top = theta[:, :1]
        locked = int(n_converged)
        known, found = torch.cat([known, X[..., :locked]], 2), torch.cat([found, evals[:, :locked]], 1)
        X, before = X[..., locked:], worst
        cut = 0.97 * values[:, -1:] * (m + n_known) / (k + n_known)
        most = _degree(GROWTH, float((top * (cut + shift)).amax()))
        enough = _degree(worst / AIM, float((theta[:, wanted - 1, None] * (cut + shift)).amin()))
        degree = min(most, enough + 1)
    evals, order = torch.cat([found, values], 1).sort(stable=True)
    return evals, torch.cat([known[..., n_known:], U], 2).take_along_dim(order[:, None], 2)


def orthonormalised(U: Tensor) -> Tensor:
    """The nearest orthonormal columns to nearly orthonormal ones, by one Newton step.

    After one more solve it leaves each column alone but for tiny corrections, where QR would mix in rounding of all
    the others: that shows, a thousandfold, in the residuals beside slivers.
    """
    U = U / torch.linalg.vector_norm(U, dim=-2, keepdim=True)
    return 1.5 * U - 0.5 * (U @ (U.mT @ U))


def _degree(growth: float, ratio: float) -> int:
    """Of the Chebyshev polynomial that is at most 1 up to an edge and `growth` at `ratio` times that edge."""
    return max(1, int(math.log(growth) / math.acosh(max(2 * ratio - 1, LEAST))))


def _filtered(solve: Apply, X: Tensor, edge: Tensor, degree: int) -> Tensor:
    """A Chebyshev polynomial of the inverse that is at most 1 below `edge` [B, 1]."""
    doubled = 2 / edge[..., None]
    before, now = X, doubled * solve(X) - X
    for _ in range(degree - 1):
        before, now = now, 2 * (doubled * solve(now) - now) - before
    return now


def _orthonormal(X: Tensor, known: Tensor) -> Tensor:
    """Columns orthonormal and orthogonal to the known ones, by Cholesky factors of their products, twice.

    Source: Fukaya et al., "Shifted Cholesky QR for computing the QR factorization of ill-conditioned matrices", 2020.
    """
    for _ in range(2):
        X = X - known @ (known.mT @ X)
        X = X / torch.linalg.vector_norm(X, dim=1, keepdim=True)
        G = X.mT @ X
        R, failed = torch.linalg.cholesky_ex(G, upper=True)
        if bool(failed.any()):
            shift = ROUNDING * len(G[0]) * (failed > 0).double()
            X = _divided(X, torch.linalg.cholesky(G + torch.diag_embed(shift[:, None].expand(G.shape[:2])), upper=True))
            R = torch.linalg.cholesky(X.mT @ X, upper=True)
        X = _divided(X, R)
    return X


def _divided(X: Tensor, R: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(R, X, upper=True, left=False)


def _eigh(G: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of small symmetric matrices [B, m, m], descending; of several on the cores: a GPU is slower."""
    if len(G) == 1:
        theta, turn = torch.linalg.eigh(G)
    else:
        with ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(torch.linalg.eigh, G.cpu().unbind(0)))
        theta, turn = (torch.stack(of).to(G.device) for of in zip(*found, strict=True))
    return theta.flip(-1), turn.flip(-1)
