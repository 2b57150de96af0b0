"""Usable geometry becomes the weak Laplacian and the lumped vertex areas.

It is separate because the choice between the plain cotangent and the robust Laplacian is made here, and only here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import MeshError, MissingExtraError
from flashheat.operators.cloud import N_NEIGHBOURS
from flashheat.operators.csr import CSR
from flashheat.operators.geometry import Geometry, unit_size
from flashheat.operators.segments import connected, reduced, summed

SLIVER = 1e-6  # shape quality below which rounding of the cotangents shows in the eigenpairs' residuals
DEGENERATE = 1e-8  # shape quality that asks for the stronger of two mollifications
MOLLIFY, MOLLIFY_DEGENERATE = 1e-10, 1e-6  # lengths added, as a share of the mean edge: 1e-5 distorts thin meshes
UPSTREAM_COTANGENT_EPSILON = 1e-10
UPSTREAM_MASS_EPSILON = 1e-8

Entries = tuple[Tensor, Tensor, Tensor]  # rows, columns, values


def laplacian_and_mass(geometry: Geometry, convention: str) -> tuple[CSR, Tensor]:
    """`L [V, V]` and `mass [V]` in units of the geometry; rows of inactive vertices are zero in both.

    - Meshes with a sliver (a face with twice its area below 1e-6 of its longest edge squared), in both conventions:
      the robust (intrinsic Delaunay, tufted) Laplacian, found on the CPU. So too, natively, where an edge has more than
      two faces or a vertex more than one fan of faces. Orientation plays no part in L or mass, so inconsistent faces
      are no reason.
    - Other meshes: the plain cotangent and a third of the area. "diffusion_net" adds 1e-10 to the cotangents'
      denominators (twice the area), and 1e-8 of its mean to mass.
    - Point clouds: natively the robust Laplacian of the local Delaunay triangles over 30 neighbours, divided by 3;
      "diffusion_net": robust_laplacian's own for clouds, as it comes.

    Raises:
        MissingExtraError: when robust_laplacian is needed and not installed.
        MeshError: when what it finds is not finite.
    """
    V, n_meshes = len(geometry.verts), len(geometry.scale)
    if geometry.neighbours is not None:
        entries, mass = _cloud(geometry) if convention == "native" else _upstream_cloud(geometry.verts)
        return CSR.from_entries(*entries[:2], entries[2:], V)[0], mass
    slivers = geometry.thinnest < SLIVER
    robust = slivers if convention == "diffusion_net" else slivers | ~manifold(geometry.faces, geometry.mesh, n_meshes)
    faces = geometry.faces[~robust[geometry.mesh[geometry.faces[:, 0]]]]
    mass = vertex_areas(geometry.verts, faces)
    if convention == "diffusion_net":
        mean = reduced(mass, geometry.mesh, n_meshes, "sum") / torch.bincount(geometry.mesh, minlength=n_meshes)
        mass += torch.where(geometry.active, UPSTREAM_MASS_EPSILON * mean[geometry.mesh], 0.0)
    parts = [cotangent(geometry.verts, faces, UPSTREAM_COTANGENT_EPSILON if convention == "diffusion_net" else 0.0)]
    for which, is_sliver in zip(robust.nonzero()[:, 0].tolist(), slivers[robust].tolist(), strict=True):
        entries, areas = _robust(geometry, which, "a mesh with slivers" if is_sliver else "a mesh that is not manifold")
        parts.append(entries)
        mass = mass + areas
    rows, columns, values = (torch.cat(of) for of in zip(*parts, strict=True))
    return CSR.from_entries(rows, columns, [values], V)[0], mass


def cotangent(verts: Tensor, faces: Tensor, epsilon: float = 0.0) -> Entries:
    """`L[i, j] = -(cot a_ij + cot b_ij) / 2` for the angles opposite to edge ij; entries that add up to it.

    Rows sum to 0.

    Args:
        verts: [V, 3].
        faces: [F, 3].
        epsilon: added to twice the area in a cotangent's denominator, unit l^2.
    """
    corners = [verts[faces[:, corner]] for corner in range(3)]
    doubled_area = torch.linalg.vector_norm(torch.linalg.cross(corners[1] - corners[0], corners[2] - corners[0]), dim=1)
    halves = []
    for corner in range(3):
        i, j, k = (corners[(corner + step) % 3] for step in range(3))
        halves.append(0.5 * ((i - k) * (j - k)).sum(1) / (doubled_area + epsilon))
    half, i, j = torch.cat(halves), faces.mT.reshape(-1), faces.roll(-1, 1).mT.reshape(-1)
    own, V = faces.reshape(-1).unique(), len(verts)
    diagonal = (summed(i, half, V) + summed(j, half, V))[own]
    return torch.cat([i, j, own]), torch.cat([j, i, own]), torch.cat([-half, -half, diagonal])


def vertex_areas(verts: Tensor, faces: Tensor) -> Tensor:
    """[V] a third of the area of each vertex's faces, unit l^2."""
    a, b, c = (verts[faces[:, corner]] for corner in range(3))
    thirds = torch.linalg.vector_norm(torch.linalg.cross(b - a, c - a), dim=1) / 6
    return summed(faces.reshape(-1), thirds.repeat_interleave(3), len(verts))


def manifold(faces: Tensor, mesh: Tensor, n_meshes: int) -> Tensor:
    """[B] whether at most two faces meet at each edge of a mesh, and one fan of faces around each vertex.

    Args:
        faces: [F, 3].
        mesh: [V] which mesh each vertex is of.
        n_meshes: B.
    """
    V, corners = len(mesh), torch.arange(faces.numel(), device=faces.device).view(-1, 3)
    tail, tip = faces.reshape(-1), faces.roll(-1, 1).reshape(-1)
    edge, order = (torch.minimum(tail, tip) * V + torch.maximum(tail, tip)).sort(stable=True)
    good = torch.ones(n_meshes, dtype=torch.bool, device=faces.device)
    good[mesh[edge[2:][edge[2:] == edge[:-2]] // V]] = False
    at_tail, at_tip = corners.reshape(-1), corners.roll(-1, 1).reshape(-1)
    forward = tail < tip
    ends = torch.stack([torch.where(forward, at_tail, at_tip), torch.where(forward, at_tip, at_tail)])[:, order]
    paired = (edge[1:] == edge[:-1]).nonzero()[:, 0]
    fan = connected(ends[:, paired].reshape(-1), ends[:, paired + 1].reshape(-1), faces.numel())
    vertex_of_fan = tail.new_zeros(int(fan.amax()) + 1).scatter_(0, fan, tail)
    fans = summed(vertex_of_fan, torch.ones_like(vertex_of_fan), V)
    good[mesh[fans > 1]] = False
    return good


def _robust(geometry: Geometry, which: int, kind: str) -> tuple[Entries, Tensor]:
    """The intrinsic Delaunay Laplacian on the tufted cover, of a mesh's active vertices only (it breaks on others).

    How it pairs the faces at an edge of more than two, and which of several equally short diagonals it takes, depends
    on their order; so they are put in one that does not depend on how the mesh is numbered.

    Source: Sharp, Crane, "A Laplacian for nonmanifold triangle meshes", 2020.
    """
    ours = geometry.active & (geometry.mesh == which)
    used, device = ours.nonzero()[:, 0], geometry.verts.device
    used = used[_by_place(geometry.verts[used])]
    verts, scale = unit_size(geometry.verts[used], torch.ones_like(used, dtype=torch.bool), torch.zeros_like(used), 1)
    number = torch.empty_like(geometry.mesh).index_copy_(0, used, torch.arange(len(used), device=device))
    faces = _sorted(number[geometry.faces[ours[geometry.faces[:, 0]]]])
    mollify = MOLLIFY_DEGENERATE if geometry.thinnest[which] < DEGENERATE else MOLLIFY
    rows, columns, values, areas = _call(
        kind, which, "mesh_laplacian", verts.cpu().contiguous().numpy(), faces.cpu().contiguous().numpy(), mollify
    )
    mass = torch.zeros_like(geometry.verts[:, 0]).index_copy_(0, used, areas.to(device) * scale**2)
    return (used[rows.to(device)], used[columns.to(device)], values.to(device)), mass


def _by_place(points: Tensor) -> Tensor:
    """The order of points by their coordinates, however they are numbered."""
    order = torch.arange(len(points), device=points.device)
    for coordinate in points.unbind(1):
        order = order[coordinate[order].argsort(stable=True)]
    return order


def _sorted(faces: Tensor) -> Tensor:
    """Each from its lowest vertex on, in the order of their vertices."""
    first = (faces.argmin(1, keepdim=True) + torch.arange(3, device=faces.device)) % 3
    faces = faces.gather(1, first)
    for corner in (2, 1, 0):
        faces = faces[faces[:, corner].argsort(stable=True)]
    return faces


def _cloud(geometry: Geometry) -> tuple[Entries, Tensor]:
    """The local triangles cover a well sampled surface three times."""
    (rows, columns, values), mass = _robust(geometry, 0, "a point cloud")
    return (rows, columns, values / 3), mass / 3


def _upstream_cloud(points: Tensor) -> tuple[Entries, Tensor]:
    n_neighbours = min(N_NEIGHBOURS, len(points) - 1)
    given = points.cpu().contiguous().numpy()
    *entries, mass = _call("a point cloud", 0, "point_cloud_laplacian", given, n_neighbors=n_neighbours)
    rows, columns, values = (of.to(points.device) for of in entries)
    return (rows, columns, values), mass.to(points.device)


def _call(kind: str, which: int, function: str, *args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The entries of L and the diagonal of M from a function of robust_laplacian, its failures as our errors."""
    try:
        import robust_laplacian
    except ImportError as error:
        raise MissingExtraError(
            f"{kind} needs the package robust_laplacian, which is not installed: pip install 'flashheat[robust]'"
        ) from error
    try:
        L, M = getattr(robust_laplacian, function)(*args, **options)
    except RuntimeError as error:
        raise MeshError(
            f"{kind} must be one that robust_laplacian can take: it says {error}; repair the mesh", which
        ) from error
    L, mass = L.tocoo(), M.diagonal()
    if not (np.isfinite(L.data).all() and np.isfinite(mass).all()):
        raise MeshError(f"{kind} must have a finite robust Laplacian: this one has not; repair the mesh", which)
    rows, columns, values = (torch.from_numpy(of) for of in (L.row.astype(np.int64), L.col.astype(np.int64), L.data))
    return rows, columns, values, torch.from_numpy(mass)
