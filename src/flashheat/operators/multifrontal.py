"""A sparse symmetric positive definite matrix becomes the action of its inverse on many columns, in batched products.

It is separate because it knows nothing of meshes. The cells of one level of a nested dissection have no entries between
them, so each level is one batch: to factorise it takes a few dense kernels a level, and so does a solve.

Source: Duff, Reid, "The multifrontal solution of indefinite sparse symmetric linear equations", 1983.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashheat.operators.dissection import Dissection
from flashheat.operators.segments import ranked, summed


@dataclass(frozen=True)
class _Level:
    """The fronts of one level: `p` rows of each cell's own (its separator), then `q` of its border, in cells above it.

    Args:
        rows: which rows of the padded order are its own, where each cell has p.
        p: own rows of the largest cell.
        q: border rows of the cell that has most.
        padding: [n_cells, p] 1 where an own row is none.
        border: [n_cells, q] rows of the padded order, or the number of all those rows where there is none.
        parts: [ways, n_cells, p + q] which row of the borders of each cell within it comes to each row, with those
            borders one below another, or the number of all their rows where none does. Empty for the leaves.
        entries: the numbers of the matrix' entries that belong here.
        places: where they go in the fronts, as one flat index.
    """

    rows: slice
    p: int
    q: int
    padding: Tensor
    border: Tensor
    parts: Tensor
    entries: Tensor
    places: Tensor


@dataclass(frozen=True)
class Pattern:
    """What the pattern of a matrix alone decides, for many matrices of that pattern.

    Args:
        slot: [n] where each row is in the padded order; after it, where a row is none of the matrix.
        n_slots: how many rows that order has.
        levels: the leaves first.
    """

    slot: Tensor
    n_slots: int
    levels: list[_Level]

    def spread(self, real: Tensor) -> Pattern:
        """The same, of a matrix that has rows of zeros wherever `real` [N] is False: their solution is 0."""
        return replace(
            self, slot=torch.full(real.shape, self.n_slots, device=real.device).masked_scatter_(real, self.slot)
        )


@dataclass(frozen=True)
class Factors:
    """For each level `inverse [n_cells, p, p]` of each front's own block, and `down [n_cells, q, p]`, its border block
    times that inverse.
    """

    pattern: Pattern
    blocks: list[tuple[Tensor, Tensor]]


def analyse(dissection: Dissection, i: Tensor, j: Tensor) -> Pattern:
    """Which rows meet in each front, of the matrix whose entries lie at rows i and columns j.

    All levels at once, in few steps however many levels there are: a GPU waits for the host here.

    Args:
        dissection: of its rows.
        i: [e] every entry once, those on the diagonal too; with (i, j) also (j, i).
        j: [e].
    """
    nodes = _Nodes(dissection, i, j)
    level, mine = dissection.level, dissection.level[i] >= dissection.level[j]  # the lower of two rows owns an entry
    numbers = mine.nonzero()[:, 0]
    order = (-level[i[numbers]]).argsort(stable=True)
    numbers = numbers[order]
    own, other = i[numbers], j[numbers]
    node, f = nodes.node[own], (nodes.p + nodes.q)[level[own]]
    places = (dissection.cell[own] * f + nodes.place(node, nodes.slot[other])) * f + nodes.place(node, nodes.slot[own])
    counts = summed(level[own], torch.ones_like(own), dissection.depth + 1)

    p, q, first, n_entries = torch.stack([nodes.p, nodes.q, nodes.first, counts]).tolist()
    n_cells = dissection.n_cells
    border = nodes.borders(n_cells, q)
    parts = nodes.parts(n_cells, p, q)
    sizes = nodes.size.split(n_cells)
    levels, start = [], 0
    for at in range(dissection.depth, -1, -1):
        rows, stop = slice(first[at], first[at] + n_cells[at] * p[at]), start + n_entries[at]
        padding = (torch.arange(p[at], device=i.device) >= sizes[at][:, None]).double()
        levels.append(
            _Level(rows, p[at], q[at], padding, border[at], parts[at], numbers[start:stop], places[start:stop])
        )
        start = stop
    return Pattern(nodes.slot, levels[-1].rows.stop, levels)


class _Nodes:
    """The cells of all levels in one row, and the borders of each as sorted keys `node * n_slots + padded row`."""

    def __init__(self, dissection: Dissection, i: Tensor, j: Tensor) -> None:
        level, cell, depth, device = dissection.level, dissection.cell, dissection.depth, i.device
        steps = torch.arange(depth + 1, device=device)
        self.cuts = dissection.cuts
        self.n_cells = dissection.n_roots << (self.cuts * steps)
        self.base = self.n_cells.cumsum(0) - self.n_cells
        self.level = steps.repeat_interleave(self.n_cells, output_size=sum(dissection.n_cells))
        self.cell = torch.arange(len(self.level), device=device) - self.base[self.level]
        self.node = self.base[level] + cell
        self.size, rank = ranked(self.node, len(self.level))
        self.p = self._widest(self.size)
        n_rows = self.n_cells * self.p
        self.first = n_rows.flip(0).cumsum(0).flip(0) - n_rows  # the leaves come first
        self.slot, self.n_slots = self.first[level] + cell * self.p[level] + rank, n_rows.sum()
        # An entry between two levels puts its upper row on the border of every cell from the lower row's up to there.
        above = (level[i] > level[j]).nonzero()[:, 0]
        i, j = i[above], j[above]
        climbed = level[i] - level[j]
        entry = torch.arange(len(i), device=device).repeat_interleave(climbed)
        step = torch.arange(len(entry), device=device) - (climbed.cumsum(0) - climbed)[entry]
        lower = i[entry]
        passed = self.base[level[lower] - step] + (cell[lower] >> (self.cuts * step))
        self.keys = (passed * self.n_slots + self.slot[j[entry]]).unique()
        self.of_key, self.row = self.keys // self.n_slots, self.keys % self.n_slots
        self.border_size = summed(self.of_key, torch.ones_like(self.of_key), len(self.level))
        self.start = self.border_size.cumsum(0) - self.border_size
        self.rank = torch.arange(len(self.keys), device=device) - self.start[self.of_key]
        self.q = self._widest(self.border_size)
        self.p_of_node = self.p[self.level]
        self.own, self.shift = self.first[self.level] + self.cell * self.p_of_node, self.p_of_node - self.start

    def _widest(self, size: Tensor) -> Tensor:
        return torch.zeros_like(self.n_cells).scatter_reduce_(0, self.level, size, "amax")

    def place(self, node: Tensor, row: Tensor) -> Tensor:
        """Where rows of the padded order stand in the fronts of nodes: own rows first, then the border."""
        own = row - self.own[node]
        on_border = torch.searchsorted(self.keys, node * self.n_slots + row) + self.shift[node]
        return torch.where(own < self.p_of_node[node], own, on_border)

    def borders(self, n_cells: Sequence[int], q: Sequence[int]) -> list[Tensor]:
        """[n_cells, q] of each level, as it has them."""
        sizes = [n * of for n, of in zip(n_cells, q, strict=True)]
        level = self.level[self.of_key]
        flat = self.n_slots.expand(sum(sizes)).clone()
        flat[_starts(sizes, flat)[level] + self.cell[self.of_key] * self.q[level] + self.rank] = self.row
        return [
            of.view(n, -1) if of.numel() else of.view(n, 0) for of, n in zip(flat.split(sizes), n_cells, strict=True)
        ]

    def parts(self, n_cells: Sequence[int], p: Sequence[int], q: Sequence[int]) -> list[Tensor]:
        """[ways, n_cells, p + q] of each level, as it has them; [0, n_cells, p + q] of the last."""
        within = 1 << self.cuts
        ways = [within] * (len(n_cells) - 1) + [0]
        sizes = [way * n * (a + b) for way, n, a, b in zip(ways, n_cells, p, q, strict=True)]
        nothing = [n * of for n, of in zip(n_cells[1:], q[1:], strict=True)] + [0]
        flat = torch.tensor(nothing, device=self.keys.device).repeat_interleave(
            torch.tensor(sizes, device=self.keys.device), output_size=sum(sizes)
        )
        passed = self.level[self.of_key] > 0
        level, cell, row = self.level[self.of_key][passed] - 1, self.cell[self.of_key][passed], self.row[passed]
        above = cell >> self.cuts
        to = _starts(sizes, flat)[level] + (cell % within * self.n_cells[level] + above) * (self.p + self.q)[level]
        to = to + self.place(self.base[level] + above, row)
        flat[to] = cell * self.q[level + 1] + self.rank[passed]
        return [of.view(way, n, a + b) for of, way, n, a, b in zip(flat.split(sizes), ways, n_cells, p, q, strict=True)]


def _starts(sizes: Sequence[int], like: Tensor) -> Tensor:
    lengths = torch.tensor(sizes, device=like.device)
    return lengths.cumsum(0) - lengths


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
        if len(level.parts):
            _extend(front, update, level.parts)
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


def _extend(front: Tensor, update: Tensor, parts: Tensor) -> None:
    """Add to each front what the cells within leave for their borders. Gathers, so that the order of sums is fixed."""
    n_below, q, _ = update.shape
    update = torch.nn.functional.pad(update.reshape(n_below * q, q), (0, 1, 0, 1))
    for rows in parts:
        columns = torch.where(rows < n_below * q, rows % max(q, 1), q)
        of_part = update.index_select(0, rows.view(-1)).view(*rows.shape, q + 1)
        front += of_part.gather(2, columns[:, None, :].expand(-1, rows.shape[1], -1))


def solve(factors: Factors, b: Tensor) -> Tensor:
    """`x [n, m]` with `A x = b`."""
    pattern, m = factors.pattern, b.shape[1]
    y = b.new_zeros(pattern.n_slots + 1, m).index_copy_(0, pattern.slot, b)
    passed = b.new_zeros(1, m)  # what the cells of a level leave for their borders, and a row of zeros
    for level, (_, down) in zip(pattern.levels, factors.blocks, strict=True):
        own = y[level.rows].view(*level.padding.shape, m)
        below, passed = passed, b.new_empty(level.border.numel() + 1, m)
        passed[-1] = 0
        into = passed[:-1].view(*level.border.shape, m)
        if len(level.parts):
            of_parts = below.index_select(0, level.parts.view(-1)).view(*level.parts.shape, m).sum(0)
            own += of_parts[:, : level.p]
            torch.baddbmm(of_parts[:, level.p :], down, own, alpha=-1, out=into)
        else:
            torch.bmm(down, own, out=into).neg_()
    x = b.new_zeros(pattern.n_slots + 1, m)
    for level, (inverse, down) in zip(reversed(pattern.levels), reversed(factors.blocks), strict=True):
        above = x.index_select(0, level.border.view(-1)).view(*level.border.shape, m)
        own = x[level.rows].view(*level.padding.shape, m)
        torch.baddbmm(inverse @ y[level.rows].view(*level.padding.shape, m), down.mT, above, alpha=-1, out=own)
    return x.index_select(0, pattern.slot)
