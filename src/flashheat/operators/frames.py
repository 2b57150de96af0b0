"""Face normals become vertex normals, and normals become tangent frames.

They are separate because point clouds need frames before they have triangles.
"""

from __future__ import annotations

import numpy as np

UPSTREAM_NORMALISE_EPSILON = 1e-6
CANCELLED = 1e-6  # a mean of unit normals shorter than this has no direction of its own


def vertex_normals(verts: np.ndarray, faces: np.ndarray, convention: str) -> np.ndarray:
    """[V, 3] the unweighted mean of the unit normals of a vertex's faces, normalised; zero where there is no face.

    Where those normals cancel, and natively where the faces around a vertex disagree in orientation: the principal
    direction of `sum n n^T`, which does not depend on signs. "diffusion_net" divides by length + 1e-6, as the original.
    """
    V, corners = len(verts), faces.ravel()
    epsilon = UPSTREAM_NORMALISE_EPSILON if convention == "diffusion_net" else 0.0
    a, b, c = verts[faces[:, 0]], verts[faces[:, 1]], verts[faces[:, 2]]
    unit = _normalised(np.cross(b - a, c - a), epsilon)
    total = np.stack([np.bincount(corners, np.repeat(unit[:, i], 3), V) for i in range(3)], axis=1)
    count = np.bincount(corners, minlength=V)
    doubtful = (np.linalg.norm(total, axis=1) <= CANCELLED * count) & (count > 0)
    if convention == "native":
        doubtful |= _disagrees(faces, V)
    normals = _normalised(total, epsilon)
    if doubtful.any():
        normals[doubtful] = _principal_normals(unit, faces, total)[doubtful]
    return normals


def tangent_frames(normals: np.ndarray) -> np.ndarray:
    """[V, 3, 3] rows X, Y, normal: X is the x axis projected on the tangent plane, or the y axis where x is steep.

    A normal of zeros becomes the z axis.
    """
    normals = np.where(np.linalg.norm(normals, axis=1, keepdims=True) > 0, normals, [0.0, 0.0, 1.0])
    axis = np.where(np.abs(normals[:, :1]) < 0.9, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    X = _normalised(axis - np.einsum("vc,vc->v", axis, normals)[:, None] * normals)
    return np.stack([X, np.cross(normals, X), normals], axis=1)


def _disagrees(faces: np.ndarray, n_verts: int) -> np.ndarray:
    """[V] bool: the vertices of edges that two faces run through in the same direction."""
    sides = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    codes = np.sort(sides[:, 0] * n_verts + sides[:, 1])
    twice = codes[1:][codes[1:] == codes[:-1]]
    disagrees = np.zeros(n_verts, bool)
    disagrees[twice // n_verts] = disagrees[twice % n_verts] = True
    return disagrees


def _principal_normals(unit: np.ndarray, faces: np.ndarray, total: np.ndarray) -> np.ndarray:
    """[V, 3] the principal direction of `sum n n^T` over a vertex's faces, on the side of their sum."""
    V, corners = len(total), faces.ravel()
    outer = np.repeat(np.einsum("fi,fj->fij", unit, unit).reshape(-1, 9), 3, axis=0)
    moments = np.stack([np.bincount(corners, outer[:, i], V) for i in range(9)], axis=1).reshape(V, 3, 3)
    direction = np.linalg.eigh(moments)[1][:, :, -1]
    return np.where(np.einsum("vc,vc->v", direction, total)[:, None] < 0, -direction, direction)


def _normalised(vectors: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    """Rows divided by their length + epsilon; rows of zeros stay zero."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True) + epsilon
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
