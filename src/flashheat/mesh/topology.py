"""Triangles become their edges, fans, sides, holes and components: arrays in, arrays of indices out.

It is separate from the report so that what is counted does not depend on how it is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True)
class Edges:
    """The edges of F triangles and who shares them.

    Args:
        halves: [3F,2] directed half-edges; number 3f+c leaves corner c of face f.
        ends: [E,2] the edges' vertices, lower first.
        n_faces: [E] how many faces share each.
        links: [N,2] half-edges that are neighbours on an edge: one link for two faces, n-1 for n.
        interior: [N] whether the link is of an edge of exactly two faces.
    """

    halves: np.ndarray
    ends: np.ndarray
    n_faces: np.ndarray
    links: np.ndarray
    interior: np.ndarray

    @property
    def same_way(self) -> np.ndarray:
        """Which links [N] join half-edges of one direction: those faces show opposite sides."""
        return self.halves[self.links[:, 0], 0] == self.halves[self.links[:, 1], 0]


def find_edges(faces: np.ndarray, n_verts: int) -> Edges:
    """The edges of `faces` [F,3]; no face may use a vertex twice."""
    halves = np.stack([faces, np.roll(faces, -1, axis=1)], axis=2).reshape(-1, 2)
    key = halves.min(axis=1) * n_verts + halves.max(axis=1)
    order = np.argsort(key, kind="stable")
    starts = np.ones(len(key), dtype=bool)
    starts[1:] = key[order[1:]] != key[order[:-1]]
    edge = np.cumsum(starts) - 1
    n_faces = np.bincount(edge)
    links = np.column_stack([order[:-1], order[1:]])[~starts[1:]]
    ends = np.sort(halves[order[starts]], axis=1)
    return Edges(halves, ends, n_faces, links, n_faces[edge[1:][~starts[1:]]] == 2)


def find_split_vertices(edges: Edges, n_verts: int) -> np.ndarray:
    """Vertices [N] whose faces form more than one fan, so that the surface only touches itself there.

    Corners of a vertex are joined across each edge that two faces share; one group of corners is one fan.
    """
    one, other = edges.links.T
    after_one, after_other = _next_corner(one), _next_corner(other)
    same = edges.same_way
    joined = np.concatenate([np.where(same, other, after_other), np.where(same, after_other, other)])
    fan = _label(len(edges.halves), np.concatenate([one, after_one]), joined)
    vertex_of_fan = np.zeros(fan.max(initial=-1) + 1, dtype=np.int64)
    vertex_of_fan[fan] = edges.halves[:, 0]
    return np.flatnonzero(np.bincount(vertex_of_fan, minlength=n_verts) > 1)


def find_sides(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """Faces to turn so that all agree (the fewer in each part), and the faces of parts where none can agree.

    Each face has two sides; links join the sides that agree. A part is one-sided (as a Moebius strip is) where both
    sides of a face end up joined. Edges of three and more faces agree with anything.
    """
    none = np.zeros(0, dtype=np.int64)
    same = edges.same_way[edges.interior]
    if not same.any():
        return none, none
    n = len(edges.halves) // 3
    f, g = (edges.links[edges.interior] // 3).T
    side = _label(2 * n, np.concatenate([f, f + n]), np.concatenate([g + n * same, g + n * ~same]))
    front, back = side[:n], side[n:]
    part = np.minimum(front, back)
    is_back = front > back
    n_back = np.bincount(part, is_back)
    minority_is_back = 2 * n_back <= np.bincount(part)
    return np.flatnonzero((is_back == minority_is_back[part]) & (front != back)), np.flatnonzero(front == back)


def count_holes(edges: Edges, n_verts: int) -> int:
    """How many closed loops the edges of a single face form (loops that touch at a vertex count as one)."""
    i, j = edges.ends[edges.n_faces == 1].T
    return int((np.bincount(_label(n_verts, i, j)[i]) > 0).sum())


def label_components(edges: Edges, n_verts: int) -> np.ndarray:
    """The number [V] of the connected part that each vertex belongs to."""
    return _label(n_verts, *edges.ends.T)


def _next_corner(half: np.ndarray) -> np.ndarray:
    return half - half % 3 + (half + 1) % 3


def _label(n: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    graph = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(n, n))
    return connected_components(graph, directed=False)[1].astype(np.int64)
