"""Eigenvectors of equal eigenvalues, which any rotation may have mixed, become the same ones whatever found them.

It is separate because it is a choice, not a computation: no eigenvector is better than another.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

EQUAL = 1e-9  # eigenvalues are equal when they differ by less than this share of them
GOLDEN = 0.6180339887498949
TIE = 1e-6  # entries this near to the largest one count as it


def canonical(evals: Tensor, U: Tensor, null: Tensor, unit: Tensor) -> Tensor:
    """Turn the columns of each group of equal eigenvalues so that they depend on their span alone.

    The first of a group points along the projection of a fixed vector, the second along what is left of the projection
    of another, and so on. Then signs: on the vertices, the largest entry of each is positive. On a symmetric mesh
    entries of both signs are largest but for rounding: there the first of them decides. A last group that goes on
    beyond column k is not all there, and stays as free as it is.

    Args:
        evals: [B, k] ascending.
        U: [B, n, k] orthonormal.
        null: [B, n, 1] sqrt(mass) of each row, 0 where a row is padding.
        unit: [B, 1] eigenvalues below it count as it.
    """
    apart = evals.diff(dim=1) > EQUAL * evals[:, 1:].maximum(unit)
    if not bool(apart.all()):
        U = U @ _turns(apart.cpu(), U, null)
    phi = torch.where(null > 0, U / null, 0.0)
    size = phi.abs()
    largest = (size >= (1 - TIE) * size.amax(1, keepdim=True)).byte().argmax(1, keepdim=True)
    return U * torch.where(phi.gather(1, largest) < 0, -1.0, 1.0)


def _turns(apart: Tensor, U: Tensor, null: Tensor) -> Tensor:
    """[B, k, k] rotations within the groups."""
    B, n, k = U.shape
    groups = [(b, start, stop) for b in range(B) for start, stop in _runs(apart[b].tolist())]
    most = max(stop - start for _, start, stop in groups)
    numbers = torch.arange(1, n + 1, dtype=torch.float64, device=U.device)[:, None]
    steps = GOLDEN * torch.arange(1, most + 1, dtype=torch.float64, device=U.device)
    fixed = (numbers * steps).frac() - 0.5  # as good as random, and the same on every device
    projected = (U.mT @ (null * fixed)).cpu().numpy()
    turns = np.tile(np.eye(k), (B, 1, 1))
    for b, start, stop in groups:  # NumPy takes a tenth of PyTorch's time for matrices this small
        Q, R = np.linalg.qr(projected[b, start:stop, : stop - start])
        turns[b, start:stop, start:stop] = Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)
    return torch.from_numpy(turns).to(U.device)


def _runs(apart: list[bool]) -> list[tuple[int, int]]:
    """Where two and more neighbours are not apart."""
    ends = [at + 1 for at, here in enumerate(apart) if here]
    starts = [0, *ends]
    return [(a, b) for a, b in zip(starts, [*ends, len(apart) + 1], strict=True) if b - a > 1]
