"""Positions and the pattern of a sparse matrix become a tree of separators: nested dissection.

It is separate because it never looks at values. All cells of a level are cut at once, by sorts and scatters, so that a
GPU makes the tree in milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAF = 384  # about how many rows a cell that is not cut further may have: on a GPU few levels count more than few sums
TILT = ((0.93, 0.29, 0.22), (-0.31, 0.94, 0.13), (-0.17, -0.19, 0.97))  # no flat part of a CAD model is across these


@dataclass(frozen=True)
class Dissection:
    """Which cell each row belongs to. Level `l` has `2^l` cells for each root; cell `c` lies in cell `c // 2` above it.

    Args:
        level: [n] the separator of a cell is on that cell's level; the last level is that of the leaves.
        cell: [n] which one on its level.
        n_roots: cells on level 0.
        depth: the last level.
    """

    level: Tensor
    cell: Tensor
    n_roots: int
    depth: int


def dissect(points: Tensor, i: Tensor, j: Tensor, root: Tensor, n_roots: int) -> Dissection:
    """Cut each cell at the median of its longest side, in tilted coordinates, until it is small.

    The rows of one half that are joined to the other become the separator: of that half where they are fewer.

    Args:
        points: [n, 3] where the rows are.
        i: [e] rows, with their columns j, of the entries off the diagonal; both (i, j) and (j, i).
        j: [e].
        root: [n] which of several matrices, joined into one, each row is of.
        n_roots: how many those are.

    Source: George, "Nested dissection of a regular finite element mesh", 1973; here by coordinates.
    """
    points = points @ torch.tensor(TILT, dtype=points.dtype, device=points.device).mT
    n, cell, free = len(points), root, torch.ones_like(root, dtype=torch.bool)
    depth = max(0, math.ceil(math.log2(max(n, 1) / n_roots / LEAF)))
    level = torch.full_like(cell, depth)
    for now in range(depth):
        n_cells = n_roots << now
        where = torch.where(free, cell, n_cells)  # the last one collects all rows that are in a separator already
        half = _halves(points, where, n_cells)
        crossing = free[i] & (where[i] == where[j]) & (half[i] != half[j])
        border = _count(i, crossing, n) > 0
        of_half = _count(2 * where + half, border, 2 * n_cells + 2).view(-1, 2)
        separator = border & (half == of_half.argmin(1)[where])
        free = free & ~separator
        level = torch.where(separator, now, level)
        cell = torch.where(free, 2 * cell + half, cell)
    return Dissection(level, cell, n_roots, depth)


def _halves(points: Tensor, where: Tensor, n_cells: int) -> Tensor:
    """[n] 0 or 1: on which side of the median along its cell's longest side each row is."""
    low = torch.full((n_cells + 1, 3), math.inf, dtype=points.dtype, device=points.device)
    index = where[:, None].expand(-1, 3)
    high = (-low).scatter_reduce_(0, index, points, "amax")
    low.scatter_reduce_(0, index, points, "amin")
    along = points.gather(1, (high - low).argmax(1)[where, None])[:, 0]
    order = along.argsort()
    order = order[where[order].argsort(stable=True)]
    size = _count(where, torch.ones_like(where), n_cells + 1)
    rank = torch.empty_like(where).scatter_(0, order, torch.arange(len(where), device=where.device))
    return (2 * (rank - (size.cumsum(0) - size)[where]) >= size[where]).long()


def _count(where: Tensor, what: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int64, device=where.device).index_add_(0, where, what.long())
