"""Face normals become vertex normals, and normals become tangent frames.

They are separate because point clouds need frames before they have triangles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashheat.operators.segments import summed

UPSTREAM_NORMALISE_EPSILON = 1e-6
CANCELLED = 1e-6  # a mean of unit normals shorter than this has no direction of its own


def vertex_normals(verts: Tensor, faces: Tensor, convention: str) -> Tensor:
    """[V, 3] the unweighted mean of the unit normals of a vertex's faces, normalised; zero where there is no face.

    Where those normals cancel, and natively where the faces around a vertex disagree in orientation: the principal
    direction of `sum n n^T`, which does not depend on signs. "diffusion_net" divides by length + 1e-6, as the original.
    """
    V, corners = len(verts), faces.reshape(-1)
    epsilon = UPSTREAM_NORMALISE_EPSILON if convention == "diffusion_net" else 0.0
    a, b, c = (verts[faces[:, corner]] for corner in range(3))
    unit = _normalised(torch.linalg.cross(b - a, c - a), epsilon)
    total, count = summed(corners, unit.repeat_interleave(3, 0), V), summed(corners, torch.ones_like(corners), V)
    doubtful = (torch.linalg.vector_norm(total, dim=1) <= CANCELLED * count) & (count > 0)
    if convention == "native":
        doubtful |= _disagrees(faces, V)
    normals = _normalised(total, epsilon)
    where = doubtful.nonzero()[:, 0]
    if len(where):
        normals[where] = _principal_normals(unit, faces, total, where)
    return normals


def tangent_frames(normals: Tensor) -> Tensor:
    """[V, 3, 3] rows X, Y, normal: X is the x axis projected on the tangent plane, or the y axis where x is steep.

    A normal of zeros becomes the z axis.
    """
    x, y, z = torch.eye(3, dtype=normals.dtype, device=normals.device)
    normals = torch.where(torch.linalg.vector_norm(normals, dim=1, keepdim=True) > 0, normals, z)
    axis = torch.where(normals[:, :1].abs() < 0.9, x, y)
    X = _normalised(axis - (axis * normals).sum(1, keepdim=True) * normals)
    return torch.stack([X, torch.linalg.cross(normals, X), normals], 1)


def _disagrees(faces: Tensor, n_verts: int) -> Tensor:
    """[V] bool: the vertices of edges that two faces run through in the same direction."""
    codes = (faces * n_verts + faces.roll(-1, 1)).reshape(-1).sort().values
    twice = codes[1:][codes[1:] == codes[:-1]]
    disagrees = torch.zeros(n_verts, dtype=torch.bool, device=faces.device)
    return disagrees.index_fill_(0, torch.cat([twice // n_verts, twice % n_verts]), True)


def _principal_normals(unit: Tensor, faces: Tensor, total: Tensor, where: Tensor) -> Tensor:
    """[N, 3] the principal direction of `sum n n^T` over the faces of each of `where` [N], on the side of their sum."""
    outer = (unit[:, :, None] * unit[:, None, :]).repeat_interleave(3, 0)
    moments = summed(faces.reshape(-1), outer, len(total))[where]
    direction = torch.linalg.eigh(moments.cpu())[1][:, :, -1].to(total.device)
    return torch.where((direction * total[where]).sum(1, keepdim=True) < 0, -direction, direction)


def _normalised(vectors: Tensor, epsilon: float = 0.0) -> Tensor:
    """Rows divided by their length + epsilon; rows of zeros stay zero."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True) + epsilon
    return torch.where(length > 0, vectors / length, 0.0)
