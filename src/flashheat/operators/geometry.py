"""A mesh becomes the part of it that has area, natively in coordinates of unit size: what every operator starts from.

It is separate because the Laplacian, the spectrum and the gradient must agree on which vertices and faces count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashheat.errors import MeshError
from flashheat.operators.cloud import cloud_normals, local_triangles, nearest_neighbours, separated
from flashheat.operators.frames import tangent_frames, vertex_normals

MIXED = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 1], np.uint64)  # equal sums modulo 2^64 are rare
NO_AREA = 1e-12  # twice a face's area over its longest edge squared


@dataclass(frozen=True)
class Geometry:
    """A mesh's usable part.

    Args:
        verts: [V, 3] float64, in units of `scale`.
        faces: [F, 3] int64, no repeated corners, no duplicates, corners active; a native cloud's local triangles.
        normals: [V, 3] unit, or zero where nothing defines one.
        active: [V] bool, vertices that have area.
        thinnest: the lowest shape quality among `faces`.
        scale: the unit of length (mass is in scale^2, evals in scale^-2).
        neighbours: [V, k] the nearest other points of a point cloud; None for a mesh.
    """

    verts: np.ndarray
    faces: np.ndarray
    normals: np.ndarray
    active: np.ndarray
    thinnest: float
    scale: float
    neighbours: np.ndarray | None = None


def usable_geometry(verts: np.ndarray, faces: np.ndarray, convention: str) -> Geometry:
    """Centre and scale (natively), then find what has area.

    Raises:
        MeshError: when no face has area; a point cloud has fewer than 4 distinct points, or all on a line.
    """
    verts, faces = np.asarray(verts, np.float64), np.asarray(faces, np.int64)
    used = np.arange(len(verts)) if len(faces) == 0 else np.flatnonzero(np.bincount(faces.ravel()))
    scale = 1.0
    if convention == "native" and len(used):
        verts, scale = unit_size(verts, used)
    return _of_mesh(verts, faces, scale, convention) if len(faces) else _of_cloud(verts, scale, convention)


def shape_quality(verts: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """[F] twice the area over the longest edge squared: 0.87 for an equilateral face, 0 for a degenerate one."""
    corners = verts[faces]
    edges = corners - np.roll(corners, 1, axis=1)
    longest = np.einsum("fic,fic->fi", edges, edges).max(axis=1, initial=0.0)
    doubled_area = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    return np.divide(doubled_area, longest, out=np.zeros(len(faces)), where=longest > 0)


def unique_edges(faces: np.ndarray) -> np.ndarray:
    """[E, 2] each undirected edge once, lower index first, sorted."""
    ends = np.concatenate([faces, np.roll(faces, -1, axis=1)]).reshape(2, -1)
    sides = np.stack([ends.min(axis=0), ends.max(axis=0)], axis=1)
    n = int(sides.max(initial=0)) + 1
    codes = np.sort((sides[:, 0] * n + sides[:, 1])[sides[:, 0] != sides[:, 1]])
    codes = codes[np.diff(codes, prepend=-1) > 0]  # np.unique takes four times as long
    return np.stack([codes // n, codes % n], axis=1)


def unit_size(verts: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, float]:
    """Move the mean of the used vertices to 0 and their largest distance from it to 1."""
    verts = verts - verts[used].mean(axis=0)
    largest = np.abs(verts[used]).max()
    if largest == 0.0:
        return verts, 1.0
    scale = float(largest * np.linalg.norm(verts[used] / largest, axis=1).max())
    return verts / scale, scale


def _of_mesh(verts: np.ndarray, faces: np.ndarray, scale: float, convention: str) -> Geometry:
    kept = _distinct_faces(faces)
    quality = shape_quality(verts, kept)
    active = np.zeros(len(verts), bool)
    active[kept[quality > NO_AREA]] = True
    if not active.any():
        raise MeshError(
            f"a mesh must have a face with area: got {len(verts)} vertices and {len(faces)} faces, none with area"
        )
    inside = active[kept].all(axis=1)
    kept, thinnest = kept[inside], float(quality[inside].min())
    return Geometry(verts, kept, vertex_normals(verts, kept, convention), active, thinnest, scale)


def _of_cloud(points: np.ndarray, scale: float, convention: str) -> Geometry:
    distinct = np.unique(points, axis=0)
    if len(distinct) < 4 or np.linalg.matrix_rank(distinct - distinct[0], tol=1e-9 * np.abs(distinct).max()) < 2:
        raise MeshError(
            f"a point cloud must have at least 4 distinct points, not all on a line: got {len(points)} points, "
            f"{len(distinct)} distinct; does the file lack its faces?"
        )
    if convention == "native":
        points = separated(points)
    neighbours = nearest_neighbours(points)
    normals = cloud_normals(points, neighbours, outward=convention == "native")
    if convention == "diffusion_net":
        none = np.zeros((0, 3), np.int64)
        return Geometry(points, none, normals, np.ones(len(points), bool), 1.0, scale, neighbours)
    faces = local_triangles(points, neighbours, tangent_frames(normals)[:, :2])
    quality = shape_quality(points, faces)
    if not (quality > NO_AREA).any():
        raise MeshError(f"a point cloud must lie on a surface: no neighbourhood of its {len(points)} points has area")
    faces, thinnest = faces[quality > NO_AREA], float(quality[quality > NO_AREA].min())
    active = np.bincount(faces.ravel(), minlength=len(points)) > 0
    return Geometry(points, faces, normals, active, thinnest, scale, neighbours)


def _distinct_faces(faces: np.ndarray) -> np.ndarray:
    """Faces with three different corners, each vertex triple once (the first), in the given order."""
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    triples = np.sort(faces, axis=1)
    marks = np.sort(triples.astype(np.uint64) @ MIXED)
    if (marks[1:] != marks[:-1]).all():  # nearly always; else exactly, which takes twenty times as long
        return faces
    _, first = np.unique(triples, axis=0, return_index=True)
    return faces[np.sort(first)]
