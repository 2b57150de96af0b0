"""Positions and the pattern of a sparse matrix become a tree of separators: nested dissection.

It is separate because it never looks at values. All cells of a level are cut at once, by sorts and scatters, so that a
GPU makes the tree in milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashheat.operators.segments import summed

LEAF = 384  # about how many rows a cell that is not cut further may have: on a GPU few levels count more than few sums
TWICE_BELOW = 60_000  # rows of a matrix: below, two cuts make one level, as launches count more than sums
TILT = ((0.93, 0.29, 0.22), (-0.31, 0.94, 0.13), (-0.17, -0.19, 0.97))  # no flat part of a CAD model is across these


@dataclass(frozen=True)
class Dissection:
    """Which cell each row belongs to. Cell `c` lies in cell `c >> cuts` of the level above it.

    Args:
        level: [n] the separators of a cell are on that cell's level; the last level is that of the leaves.
        cell: [n] which one on its level.
        n_roots: cells on level 0.
        depth: the last level.
        cuts: how often a cell is halved from one level to the next.
    """

    level: Tensor
    cell: Tensor
    n_roots: int
    depth: int
    cuts: int

    @property
    def n_cells(self) -> list[int]:
        """How many cells each level has."""
        return [self.n_roots << (self.cuts * level) for level in range(self.depth + 1)]


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
    along = points.argsort(0).argsort(0)  # [n, 3] the place of each row along each axis
    n, where, cell = len(points), root, root
    n_cuts = max(0, math.ceil(math.log2(max(n, 1) / n_roots / LEAF)))
    cuts = 2 if n_cuts > 1 and n < TWICE_BELOW * n_roots else 1
    depth = n_cuts // cuts
    level = torch.full_like(cell, depth)
    for now in range(depth * cuts):
        n_cells = n_roots << now  # `where` is this number for all rows that are in a separator already
        half = _halves(points, along, where, n_cells)
        side = 2 * where + half
        border = summed(i, (side[i] ^ side[j] == 1).long(), n) > 0
        fewer = summed(side, border.long(), 2 * n_cells + 2).view(-1, 2).argmin(1)
        separator = border & (half == fewer[where])
        level = torch.where(separator, now // cuts, level)
        cell = torch.where(separator, where >> (now % cuts), cell)
        where = torch.where(separator, 2 * n_cells, side)
    return Dissection(level, torch.where(level == depth, where, cell), n_roots, depth, cuts)


def _halves(points: Tensor, along: Tensor, where: Tensor, n_cells: int) -> Tensor:
    """[n] 0 or 1: on which side of the median along its cell's longest side each row is; 0 where it is in no cell."""
    n, index = len(where), where[:, None].expand(-1, 3)
    low = points.new_full((n_cells + 1, 3), math.inf).scatter_reduce_(0, index, points, "amin")
    high = points.new_full((n_cells + 1, 3), -math.inf).scatter_reduce_(0, index, points, "amax")
    longest = (high - low).argmax(1)
    order = (where * n + along.gather(1, longest[where, None])[:, 0]).argsort()
    size = summed(where, torch.ones_like(where), n_cells + 1)
    twice_median = 2 * size.cumsum(0) - size
    place = torch.empty_like(where).scatter_(0, order, torch.arange(n, device=where.device))
    return ((2 * place >= twice_median[where]) & (where < n_cells)).long()
