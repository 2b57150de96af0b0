"""A sparse symmetric positive definite matrix becomes the action of its inverse on many columns, in batched products.

It is separate because it knows nothing of meshes. The cells of one level of a nested dissection have no entries between
them, so each level is one batch: to factorise it takes a few dense kernels a level, and so does a solve.

Source: Duff, Reid, "The multifrontal solution of indefinite sparse symmetric linear equations", 1983.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashheat.operators.dissection import Dissection


@dataclass(frozen=True)
class _Level:
    """The fronts of one level: `p` rows of each cell's own (its separator), then `q` of its border, in cells above it.

    Args:
        rows: which rows of the padded order are its own, where each cell has p.
        p: own rows of the largest cell.
        q: border rows of the cell that has most.
        padding: [n_cells, p] 1 where an own row is none.
        border: [n_cells, q] rows of the padded order, or the number of all those rows where there is none.
        halves: [2, n_cells, p + q] which row of the borders of a cell's first and second half comes to each row, with
            those borders one below another, or the number of all their rows where none does. Empty for the leaves.
        entries: the numbers of the matrix' entries that belong here.
        places: where they go in the fronts, as one flat index.
    """

    rows: slice
    p: int
    q: int
    padding: Tensor
    border: Tensor
    halves: Tensor
    entries: Tensor
    places: Tensor


@dataclass(frozen=True)
class Pattern:
    """What the pattern of a matrix alone decides, for many matrices of that pattern.

    Args:
        slot: [n] where each row is in the padded order.
        n_slots: how many rows that order has.
        levels: the leaves first.
    """

    slot: Tensor
    n_slots: int
    levels: list[_Level]


@dataclass(frozen=True)
class Factors:
    """For each level `inverse [n_cells, p, p]` of each front's own block, and `down [n_cells, q, p]`, its border block
    times that inverse.
    """

    pattern: Pattern
    blocks: list[tuple[Tensor, Tensor]]


def analyse(dissection: Dissection, i: Tensor, j: Tensor) -> Pattern:
    """Which rows meet in each front, of the matrix whose entries lie at rows i and columns j.

    Args:
        dissection: of its rows.
        i: [e] every entry once, those on the diagonal too; with (i, j) also (j, i).
        j: [e].
    """
    level, cell, depth, device = dissection.level, dissection.cell, dissection.depth, i.device
    n_cells = [dissection.n_roots << at for at in range(depth + 1)]
    node = torch.tensor([0, *n_cells], device=device).cumsum(0)[level] + cell
    size, rank = _counted(node, sum(n_cells))
    sizes = size.split(n_cells)
    p = torch.stack([of.max() for of in sizes]).tolist()
    end = [sum(n * rows for n, rows in zip(n_cells[at:], p[at:], strict=True)) for at in range(depth + 2)]
    first = torch.tensor(end[1:], device=device)
    slot, n_slots = first[level] + cell * torch.tensor(p, device=device)[level] + rank, end[0]

    of_level = torch.where(level[i] >= level[j], level[i], depth + 1)  # the row of the lower level owns an entry
    counts = torch.bincount(of_level, minlength=depth + 2).tolist()
    entries = of_level.argsort(stable=True).split(counts)
    levels: list[_Level] = []
    keys, q_below = slot[:0], 0
    for at in range(depth, -1, -1):
        own, mine = slice(end[at + 1], end[at]), entries[at]
        owner, column, row = cell[i[mine]], slot[i[mine]], slot[j[mine]]
        half, below = keys // n_slots, keys % n_slots
        passed, n_below = below >= own.stop, 0 if at == depth else n_cells[at + 1]
        upward = (owner * n_slots + row)[row >= own.stop], (half // 2 * n_slots + below)[passed]
        borders = _Borders(torch.cat(upward).unique(), n_slots, n_cells[at], own, p[at])
        halves = torch.full((0 if at == depth else 2, n_cells[at], p[at] + borders.q), n_below * q_below, device=device)
        if at < depth:
            halves[half % 2, half // 2, borders.place(half // 2, below)] = half * q_below + _counted(half, n_below)[1]
        places = (owner * (p[at] + borders.q) + borders.place(owner, row)) * (p[at] + borders.q)
        places += borders.place(owner, column)
        padding = (torch.arange(p[at], device=device) >= sizes[at][:, None]).double()
        levels.append(_Level(own, p[at], borders.q, padding, borders.rows(), halves, mine, places))
        keys, q_below = borders.keys, borders.q
    return Pattern(slot, n_slots, levels)


class _Borders:
    """The borders of one level's cells, made of sorted keys `cell * n_slots + row of the padded order`."""

    def __init__(self, keys: Tensor, n_slots: int, n_cells: int, own: slice, p: int) -> None:
        self.keys, self.n_slots, self.n_cells, self.own, self.p = keys, n_slots, n_cells, own, p
        self.size, self.rank = _counted(keys // n_slots, n_cells)
        self.start = self.size.cumsum(0) - self.size
        self.q = int(self.size.max())

    def rows(self) -> Tensor:
        """[n_cells, q], as a level has them."""
        rows = torch.full((self.n_cells, self.q), self.n_slots, device=self.keys.device)
        rows[self.keys // self.n_slots, self.rank] = self.keys % self.n_slots
        return rows

    def place(self, cell: Tensor, row: Tensor) -> Tensor:
        """The rows of the fronts at which rows of the padded order stand."""
        on_border = self.p + torch.searchsorted(self.keys, cell * self.n_slots + row) - self.start[cell]
        return torch.where(row < self.own.stop, row - self.own.start - cell * self.p, on_border)


def _counted(where: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """How many of each of 0 ... n - 1 there are, and for each one how many of its kind come before it."""
    size = torch.bincount(where, minlength=n)
    order = where.argsort(stable=True)
    rank = torch.empty_like(where)
    rank[order] = torch.arange(len(where), device=where.device) - (size.cumsum(0) - size)[where[order]]
    return size, rank


def factorise(pattern: Pattern, values: Tensor) -> Factors:
    """Factorise the matrix that has `values [e]` at the pattern's entries.

    Raises:
        torch.linalg.LinAlgError: it is not positive definite.
    """
    blocks: list[tuple[Tensor, Tensor]] = []
    update, failed = values.new_zeros(0, 0, 0), []
    for level in pattern.levels:
        n, p, f = len(level.padding), level.p, level.p + level.q
        front = values.new_zeros(n, f, f)
        front.view(-1)[level.places] = values[level.entries]
        front[:, :p, :p].diagonal(dim1=1, dim2=2).add_(level.padding)
        if len(level.halves):
            _extend(front, update, level.halves)
        L, info = torch.linalg.cholesky_ex(front[:, :p, :p])
        failed.append(info.any())
        identity = torch.eye(p, dtype=values.dtype, device=values.device).expand(n, p, p)
        inverse_L = torch.linalg.solve_triangular(L, identity, upper=False)
        across = front[:, p:, :p] @ inverse_L.mT
        update = torch.baddbmm(front[:, p:, p:], across, across.mT, alpha=-1)
        blocks.append((inverse_L.mT @ inverse_L, across @ inverse_L))
    if bool(torch.stack(failed).any()):
        raise torch.linalg.LinAlgError("a matrix to be factorised must be positive definite: this one is not")
    return Factors(pattern, blocks)


def _extend(front: Tensor, update: Tensor, halves: Tensor) -> None:
    """Add to each front what its two halves leave for their borders. Gathers, so that the order of sums is fixed."""
    n_below, q, _ = update.shape
    update = torch.nn.functional.pad(update.reshape(n_below * q, q), (0, 1, 0, 1))
    for rows in halves:
        columns = torch.where(rows < n_below * q, rows % max(q, 1), q)
        of_half = update.index_select(0, rows.view(-1)).view(*rows.shape, q + 1)
        front += of_half.gather(2, columns[:, None, :].expand(-1, rows.shape[1], -1))


def solve(factors: Factors, b: Tensor) -> Tensor:
    """`x [n, m]` with `A x = b`."""
    pattern, m = factors.pattern, b.shape[1]
    y = b.new_zeros(pattern.n_slots, m)
    y[pattern.slot] = b
    passed = b.new_zeros(1, m)  # what the cells of a level leave for their borders, and a row of zeros
    for level, (_, down) in zip(pattern.levels, factors.blocks, strict=True):
        own = y[level.rows].view(*level.padding.shape, m)
        below, passed = passed, b.new_zeros(level.border.numel() + 1, m)
        into = passed[:-1].view(*level.border.shape, m)
        if len(level.halves):
            one, other = (below.index_select(0, rows.view(-1)).view(*rows.shape, m) for rows in level.halves)
            one += other
            own += one[:, : level.p]
            into += one[:, level.p :]
        into.baddbmm_(down, own, alpha=-1)
    x = b.new_zeros(pattern.n_slots + 1, m)
    for level, (inverse, down) in zip(reversed(pattern.levels), reversed(factors.blocks), strict=True):
        above = x.index_select(0, level.border.view(-1)).view(*level.border.shape, m)
        own = x[level.rows].view(*level.padding.shape, m)
        torch.baddbmm(inverse @ y[level.rows].view(*level.padding.shape, m), down.mT, above, alpha=-1, out=own)
    return x.index_select(0, pattern.slot)
