"""A point cloud becomes neighbourhoods, normals and the triangles of its local Delaunay triangulations.

It is separate because only clouds need it. robust_laplacian triangulates clouds too, but what it finds depends on where
the cloud lies (version 1.1.0: on 80,000 points of a sphere, 55 % of the area comes out).
"""

from __future__ import annotations

import numpy as np

N_NEIGHBOURS = 30
SEPARATION = 1e-4  # natively, coincident points are moved apart by this share of the distance to the next point
TIE_BREAK = 1e-8  # weight of a point in the local triangulations, as a share of its squared distance to the nearest


def nearest_neighbours(points: np.ndarray) -> np.ndarray:
    """[V, min(30, V - 1)] the nearest other points of each point, nearest first."""
    from scipy.spatial import KDTree

    k = min(N_NEIGHBOURS, len(points) - 1)
    found = np.asarray(KDTree(points).query(points, np.arange(1, k + 2))[1])
    itself = found == np.arange(len(points))[:, None]
    itself[~itself.any(axis=1), -1] = True
    return found[~itself].reshape(len(points), k)


def separated(points: np.ndarray) -> np.ndarray:
    """Points with exact copies moved a little, in seeded directions, so that each has neighbours in all directions."""
    from scipy.spatial import KDTree

    distinct, first, inverse = np.unique(points, axis=0, return_index=True, return_inverse=True)
    copies = np.setdiff1d(np.arange(len(points)), first)
    if len(copies) == 0:
        return points
    spacing, _ = KDTree(distinct).query(distinct[inverse.ravel()[copies]], [2])
    directions = np.random.default_rng(0).standard_normal((len(copies), 3))
    moved = points.copy()
    moved[copies] += SEPARATION * spacing * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return moved


def cloud_normals(points: np.ndarray, neighbours: np.ndarray, outward: bool) -> np.ndarray:
    """[V, 3] the direction in which each point's neighbours spread least; `outward`: away from the cloud's centre."""
    normals = np.linalg.svd(points[neighbours] - points[:, None], full_matrices=False)[2][:, -1]
    if outward:
        away = np.einsum("vc,vc->v", normals, points - points.mean(axis=0))
        normals = np.where(away[:, None] < 0, -normals, normals)
    return normals


def local_triangles(points: np.ndarray, neighbours: np.ndarray, tangents: np.ndarray) -> np.ndarray:
    """[T, 3] for each point, the triangles around it in the Delaunay triangulation of its projected neighbourhood.

    On a well sampled surface each triangle comes three times, once from each corner. The inversion p -> p / |p|^2 takes
    a point's Delaunay neighbours to the corners of a convex hull, which is wrapped for all points at once.

    Args:
        points: [V, 3].
        neighbours: [V, k].
        tangents: [V, 2, 3] orthonormal rows of each tangent plane.
    """
    projected = np.einsum("vkc,vic->vki", points[neighbours] - points[:, None], tangents)
    squared = np.einsum("vki,vki->vk", projected, projected)
    weight = TIE_BREAK * np.random.default_rng(0).uniform(size=len(points)) * squared.min(axis=1)
    power = np.maximum(squared + weight[:, None] - weight[neighbours], 1e-12 * squared.max(axis=1, keepdims=True))
    inverted = np.divide(projected, power[..., None], out=np.zeros_like(projected), where=power[..., None] > 0)
    first, second, centre = _wrap_hulls(np.concatenate([inverted, np.zeros((len(points), 1, 2))], axis=1))
    inner = (first < neighbours.shape[1]) & (second < neighbours.shape[1])
    centre = centre[inner]
    return np.stack([centre, neighbours[centre, first[inner]], neighbours[centre, second[inner]]], axis=1)


def _wrap_hulls(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(from, to, row) of every edge of the convex hull of each row's points [V, k, 2], by gift wrapping."""
    rows = np.arange(len(points))
    size = np.linalg.norm(points, axis=2)
    start = size.argmax(axis=1)
    points = points / np.maximum(size[rows, start], np.finfo(float).tiny)[:, None, None]
    at, edges = start, []
    heading = points[rows, start] @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    for _ in range(points.shape[1]):
        if len(rows) == 0:
            break
        step = points[rows] - points[rows, at][:, None]
        along = np.einsum("vki,vi->vk", step, heading)
        across = heading[:, :1] * step[..., 1] - heading[:, 1:] * step[..., 0]
        turn = np.arctan2(across, along)
        turn[turn < -1e-9] += 2 * np.pi
        turn[np.einsum("vki,vki->vk", step, step) < 1e-24] = np.inf
        to = turn.argmin(axis=1)
        edges.append(np.stack([at, to, rows]))
        going = to != start[rows]
        heading, rows, at = points[rows, to] - points[rows, at], rows[going], to[going]
        heading = heading[going]
    first, second, row = np.concatenate(edges, axis=1)
    return first, second, row
