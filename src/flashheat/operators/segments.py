"""Parts of a tensor are summed, ranked and joined by index: the same bits in every run, on every device.

It is separate because a GPU adds in any order unless it is told otherwise, and is told so here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def summed(where: Tensor, values: Tensor, n: int) -> Tensor:
    """[n, ...] for each of 0 ... n - 1 the sum of those values [e, ...] that `where` [e] sends there."""
    total = values.new_zeros(n, *values.shape[1:])
    if values.is_cuda and values.is_floating_point():
        return total.index_put_((where,), values, accumulate=True)  # it sorts; index_add_ adds in any order
    return total.index_add_(0, where, values)


def ranked(where: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """[n] how many of each of 0 ... n - 1 there are, and [e] for each one how many of its kind come before it."""
    size = summed(where, torch.ones_like(where), n)
    order = where.argsort(stable=True)
    rank = torch.empty_like(where)
    rank[order] = torch.arange(len(where), device=where.device) - (size.cumsum(0) - size)[where[order]]
    return size, rank


def reduced(values: Tensor, part: Tensor, n: int, how: str) -> Tensor:
    """[n] the "sum", "min" or "max" of the float values [e] of each part; `part` [e] ascends.

    A part without values has 0, infinity or minus infinity.
    """
    initial = {"sum": 0.0, "min": torch.inf, "max": -torch.inf}[how]
    lengths = torch.searchsorted(part, torch.arange(n + 1, device=part.device)).diff()
    return torch.segment_reduce(values, how, lengths=lengths, initial=initial, unsafe=True)


def connected(i: Tensor, j: Tensor, n: int) -> Tensor:
    """[n] the group of each of 0 ... n - 1, every i [e] joined to its j; groups are in order of their first member."""
    return _by_labels(i, j, n) if i.is_cuda else _by_scipy(i, j, n)


def _by_scipy(i: Tensor, j: Tensor, n: int) -> Tensor:
    """On one core, twelve times faster than steps of all at once."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(i), np.int8), (i.numpy(), j.numpy())), shape=(n, n))
    return torch.from_numpy(connected_components(graph, directed=False)[1].astype(np.int64))


def _by_labels(i: Tensor, j: Tensor, n: int) -> Tensor:
    """On a GPU: all take the lowest label of their neighbours, until none changes.

    Source: Zhang, Azad, Buluc, "Parallel algorithms for finding connected components using linear algebra", 2020.
    """
    i, j = torch.cat([i, j]), torch.cat([j, i])
    parent = torch.arange(n, device=i.device)
    while True:
        above = parent[parent]
        lowest = above[j]
        joined = parent.scatter_reduce(0, parent[i], lowest, "amin").scatter_reduce_(0, i, lowest, "amin")
        joined = joined.minimum(above)
        if torch.equal(joined, parent):
            return parent.unique(return_inverse=True)[1]
        parent = joined
