"""Meshes become the part of them that has area, natively in coordinates of unit size: what every operator starts from.

It is separate because the Laplacian, the spectrum and the gradient must agree on which vertices and faces count. Meshes
come packed: vertices one mesh after another, so that a GPU works on many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import MeshError
from flashheat.operators.cloud import cloud_normals, local_triangles, nearest_neighbours, separated
from flashheat.operators.frames import tangent_frames, vertex_normals
from flashheat.operators.segments import reduced, summed

MIXED = (-0x61C8864680B583EB, -0x3D4D51C2D82B14B1)  # equal sums modulo 2^64 are rare
NO_AREA = 1e-12  # twice a face's area over its longest edge squared


@dataclass(frozen=True)
class Geometry:
    """The usable part of B packed meshes, or of one point cloud.

    Args:
        verts: [V, 3] float64, in units of `scale`.
        faces: [F, 3] int64, no repeated corners, no duplicates, corners active; a native cloud's local triangles.
        normals: [V, 3] unit, or zero where nothing defines one.
        active: [V] bool, vertices that have area.
        mesh: [V] which mesh each vertex is of, ascending.
        thinnest: [B] the lowest shape quality among a mesh's `faces`.
        scale: [B] the unit of length (mass is in scale^2, evals in scale^-2).
        neighbours: [V, k] the nearest other points of a point cloud; None for meshes.
    """

    verts: Tensor
    faces: Tensor
    normals: Tensor
    active: Tensor
    mesh: Tensor
    thinnest: Tensor
    scale: Tensor
    neighbours: Tensor | None = None


def usable_geometry(verts: Tensor, faces: Tensor, sizes: Sequence[int], convention: str) -> Geometry:
    """Centre and scale each mesh (natively), then find what has area.

    Args:
        verts: [V, 3] float64.
        faces: [F, 3] int64, mesh after mesh, indices into all of verts; none: verts are one point cloud.
        sizes: how many vertices each mesh has.
        convention: "native" or "diffusion_net".

    Raises:
        MeshError: when a mesh has no face with area; a point cloud has fewer than 4 distinct points, or all on a line.
    """
    mesh = torch.arange(len(sizes), device=verts.device).repeat_interleave(
        torch.tensor(sizes, device=verts.device), output_size=len(verts)
    )
    used = torch.ones_like(mesh, dtype=torch.bool)
    if len(faces):
        used = torch.zeros_like(used).index_fill_(0, faces.reshape(-1), True)
    scale = verts.new_ones(len(sizes))
    if convention == "native":
        verts, scale = unit_size(verts, used, mesh, len(sizes))
    return (
        _of_meshes(verts, faces, mesh, scale, convention) if len(faces) else _of_cloud(verts, mesh, scale, convention)
    )


def shape_quality(verts: Tensor, faces: Tensor) -> Tensor:
    """[F] twice the area over the longest edge squared: 0.87 for an equilateral face, 0 for a degenerate one."""
    a, b, c = (verts[faces[:, corner]] for corner in range(3))
    longest = torch.stack([(of * of).sum(1) for of in (b - a, c - b, a - c)]).amax(0)
    doubled_area = torch.linalg.vector_norm(torch.linalg.cross(b - a, c - a), dim=1)
    return torch.where(longest > 0, doubled_area / longest, 0.0)


def unique_edges(faces: Tensor, n_verts: int) -> Tensor:
    """[E, 2] each undirected edge once, lower index first, sorted."""
    ends, tips = faces.reshape(-1), faces.roll(-1, 1).reshape(-1)
    codes = torch.minimum(ends, tips) * n_verts + torch.maximum(ends, tips)
    codes = torch.unique_consecutive(codes[ends != tips].sort().values)
    return torch.stack([codes // n_verts, codes % n_verts], 1)


def unit_size(verts: Tensor, used: Tensor, mesh: Tensor, n_meshes: int) -> tuple[Tensor, Tensor]:
    """Move the middle of the box of each mesh's used vertices to 0, scale their largest distance from it to 1.

    The middle: a mean would depend by rounding on the order of the vertices.

    Returns:
        The vertices, and the unit [B].
    """
    lowest, highest = (
        torch.stack([reduced(torch.where(used, of, bound), mesh, n_meshes, how) for of in verts.unbind(1)], 1)
        for bound, how in ((torch.inf, "min"), (-torch.inf, "max"))
    )
    verts = verts - (lowest / 2 + highest / 2)[mesh]
    largest = reduced(torch.where(used, verts.abs().amax(1), 0.0), mesh, n_meshes, "max")
    largest = torch.where(largest > 0, largest, 1.0)
    length = torch.linalg.vector_norm(verts / largest[mesh, None], dim=1)
    length = reduced(torch.where(used, length, 0.0), mesh, n_meshes, "max")
    scale = torch.where(length > 0, largest * length, 1.0)
    return verts / scale[mesh, None], scale


def _of_meshes(verts: Tensor, faces: Tensor, mesh: Tensor, scale: Tensor, convention: str) -> Geometry:
    kept = _distinct_faces(faces)
    quality = shape_quality(verts, kept)
    active = torch.zeros_like(mesh, dtype=torch.bool)
    active[kept[quality > NO_AREA].reshape(-1)] = True
    empty = (summed(mesh, active.long(), len(scale)) == 0).nonzero()[:, 0].tolist()
    if empty:
        n_verts, n_faces = int((mesh == empty[0]).sum()), int((mesh[faces[:, 0]] == empty[0]).sum())
        raise MeshError(
            f"a mesh must have a face with area: got {n_verts} vertices and {n_faces} faces, none with area; "
            "are they collapsed, or does one vertex lie far away? `flashheat check` says what is wrong",
            which=empty[0],
        )
    inside = active[kept].all(1)
    kept, quality = kept[inside], quality[inside]
    thinnest = reduced(quality, mesh[kept[:, 0]], len(scale), "min")
    return Geometry(verts, kept, vertex_normals(verts, kept, convention), active, mesh, thinnest, scale)


def _of_cloud(verts: Tensor, mesh: Tensor, scale: Tensor, convention: str) -> Geometry:
    """On the CPU, where the searches are made; what they find goes back to the device of `verts`."""
    points = verts.cpu().numpy()
    distinct = np.unique(points, axis=0)
    if len(distinct) < 4 or np.linalg.matrix_rank(distinct - distinct[0], tol=1e-9 * np.abs(distinct).max()) < 2:
        raise MeshError(
            f"a point cloud must have at least 4 distinct points, not all on a line: got {len(points)} points, "
            f"{len(distinct)} distinct; does the file lack its faces?"
        )
    if convention == "native":
        points = separated(points)
    near = nearest_neighbours(points)
    normals = cloud_normals(points, near, outward=convention == "native")
    verts, neighbours, normal = (torch.from_numpy(of).to(verts.device) for of in (points, near, normals))
    everywhere = torch.ones_like(mesh, dtype=torch.bool)
    if convention == "diffusion_net":
        none = mesh.new_zeros(0, 3)
        return Geometry(verts, none, normal, everywhere, mesh, torch.ones_like(scale), scale, neighbours)
    tangents = tangent_frames(torch.from_numpy(normals))[:, :2].numpy()
    faces = torch.from_numpy(local_triangles(points, near, tangents)).to(verts.device)
    quality = shape_quality(verts, faces)
    if not bool((quality > NO_AREA).any()):
        raise MeshError(f"a point cloud must lie on a surface: no neighbourhood of its {len(points)} points has area")
    faces, thinnest = faces[quality > NO_AREA], quality[quality > NO_AREA].amin(0, keepdim=True)
    active = torch.zeros_like(everywhere).index_fill_(0, faces.reshape(-1), True)
    return Geometry(verts, faces, normal, active, mesh, thinnest, scale, neighbours)


def _distinct_faces(faces: Tensor) -> Tensor:
    """Faces with three different corners, each vertex triple once (the first), in the given order."""
    a, b, c = faces.unbind(1)
    faces = faces[(a != b) & (b != c) & (c != a)]
    low, high = faces.amin(1), faces.amax(1)
    middle = faces.sum(1) - low - high
    marks = (low * MIXED[0] + middle * MIXED[1] + high).sort().values
    if not bool((marks[1:] == marks[:-1]).any()):  # nearly always; else exactly, which takes twenty times as long
        return faces
    _, which = torch.stack([low, middle, high], 1).unique(dim=0, return_inverse=True)
    numbers = torch.arange(len(faces), device=faces.device)
    first = torch.full_like(numbers, len(faces)).scatter_reduce_(0, which, numbers, "amin")
    return faces[first[which] == numbers]
