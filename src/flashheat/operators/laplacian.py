"""Usable geometry becomes the weak Laplacian and the lumped vertex areas.

It is separate because the choice between the plain cotangent and the robust Laplacian is made here, and only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flashheat.errors import MeshError, MissingExtraError
from flashheat.operators.cloud import N_NEIGHBOURS
from flashheat.operators.geometry import Geometry, unit_size

if TYPE_CHECKING:
    import scipy.sparse

SLIVER = 1e-6  # shape quality below which rounding of the cotangents shows in the eigenpairs' residuals
DEGENERATE = 1e-8  # shape quality that asks for the stronger of two mollifications
MOLLIFY, MOLLIFY_DEGENERATE = 1e-10, 1e-6  # lengths added, as a share of the mean edge: 1e-5 distorts thin meshes
UPSTREAM_COTANGENT_EPSILON = 1e-10
UPSTREAM_MASS_EPSILON = 1e-8


def laplacian_and_mass(geometry: Geometry, convention: str) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """`L [V, V]` and `mass [V]` in units of the geometry; rows of inactive vertices are zero in both.

    - Meshes with a sliver (a face with twice its area below 1e-6 of its longest edge squared), in both conventions:
      the robust (intrinsic Delaunay, tufted) Laplacian. So too, natively, where an edge has more than two faces or a
      vertex more than one fan of faces. Orientation plays no part in L or mass, so inconsistent faces are no reason.
    - Other meshes: the plain cotangent and a third of the area. "diffusion_net" adds 1e-10 to the cotangents'
      denominators (twice the area), and 1e-8 of its mean to mass.
    - Point clouds: natively the robust Laplacian of the local Delaunay triangles over 30 neighbours, divided by 3;
      "diffusion_net": robust_laplacian's own for clouds, as it comes.

    Raises:
        MissingExtraError: when robust_laplacian is needed and not installed.
        MeshError: when what it finds is not finite.
    """
    if geometry.neighbours is not None:
        return _cloud(geometry) if convention == "native" else _upstream_cloud(geometry.verts)
    if geometry.thinnest < SLIVER:
        return _robust(geometry, "a mesh with slivers")
    if convention == "native" and not is_manifold(geometry.faces):
        return _robust(geometry, "a mesh that is not manifold")
    mass = vertex_areas(geometry.verts, geometry.faces)
    if convention == "native":
        return cotangent(geometry.verts, geometry.faces), mass
    L = cotangent(geometry.verts, geometry.faces, UPSTREAM_COTANGENT_EPSILON)
    return L, np.where(geometry.active, mass + UPSTREAM_MASS_EPSILON * mass.mean(), 0.0)


def cotangent(verts: np.ndarray, faces: np.ndarray, epsilon: float = 0.0) -> scipy.sparse.csr_array:
    """`L[i, j] = -(cot a_ij + cot b_ij) / 2` for the angles opposite to edge ij; rows sum to 0.

    Args:
        verts: [V, 3].
        faces: [F, 3].
        epsilon: added to twice the area in a cotangent's denominator, unit l^2.
    """
    import scipy.sparse

    halves, ends = [], []
    for corner in range(3):
        i, j, k = faces[:, corner], faces[:, (corner + 1) % 3], faces[:, (corner + 2) % 3]
        to_i, to_j = verts[i] - verts[k], verts[j] - verts[k]
        doubled_area = np.linalg.norm(np.cross(to_i, to_j), axis=1) + epsilon
        halves.append(0.5 * np.einsum("fc,fc->f", to_i, to_j) / doubled_area)
        ends.append(np.stack([i, j]))
    V, half, (i, j) = len(verts), np.concatenate(halves), np.concatenate(ends, axis=1)
    diagonal, own = np.bincount(i, half, V) + np.bincount(j, half, V), np.flatnonzero(np.bincount(faces.ravel()))
    rows, columns = np.concatenate([i, j, own]), np.concatenate([j, i, own])
    return scipy.sparse.coo_array(
        (np.concatenate([-half, -half, diagonal[own]]), (rows, columns)), shape=(V, V)
    ).tocsr()


def vertex_areas(verts: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """[V] a third of the area of each vertex's faces, unit l^2."""
    a, b, c = verts[faces[:, 0]], verts[faces[:, 1]], verts[faces[:, 2]]
    thirds = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 6
    return np.bincount(faces.ravel(), weights=np.repeat(thirds, 3), minlength=len(verts))


def is_manifold(faces: np.ndarray) -> bool:
    """At most two faces at each edge, and one fan of faces around each vertex."""
    n, corners = int(faces.max()) + 1, np.arange(faces.size).reshape(-1, 3)
    tail, tip = faces.ravel(), np.roll(faces, -1, axis=1).ravel()
    edge = np.minimum(tail, tip) * n + np.maximum(tail, tip)
    order = np.argsort(edge)
    edge = edge[order]
    if (edge[2:] == edge[:-2]).any():
        return False
    at_tail, at_tip = corners.ravel(), np.roll(corners, -1, axis=1).ravel()
    ends = np.where(tail < tip, [at_tail, at_tip], [at_tip, at_tail])[:, order]
    paired = np.flatnonzero(edge[1:] == edge[:-1])
    return _n_groups(ends[:, paired].ravel(), ends[:, paired + 1].ravel(), faces.size) == np.count_nonzero(
        np.bincount(tail)
    )


def _n_groups(one: np.ndarray, other: np.ndarray, n: int) -> int:
    """How many groups n things form when one and other are joined: corners of faces, at both ends of a shared edge."""
    import scipy.sparse
    from scipy.sparse.csgraph import connected_components

    joined = scipy.sparse.coo_array((np.ones(len(one), np.int8), (one, other)), shape=(n, n))
    return int(connected_components(joined.tocsr(), directed=False)[0])


def _robust(geometry: Geometry, kind: str) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """The intrinsic Delaunay Laplacian on the tufted cover, of the active vertices only (it breaks on others).

    Source: Sharp, Crane, "A Laplacian for nonmanifold triangle meshes", 2020.
    """
    import scipy.sparse

    used, V = np.flatnonzero(geometry.active), len(geometry.verts)
    verts, scale = unit_size(geometry.verts, used)
    faces = np.searchsorted(used, geometry.faces)
    mollify = MOLLIFY_DEGENERATE if geometry.thinnest < DEGENERATE else MOLLIFY
    L, areas = _call(kind, "mesh_laplacian", np.ascontiguousarray(verts[used]), np.ascontiguousarray(faces), mollify)
    mass = np.zeros(V)
    mass[used] = areas * scale**2
    return scipy.sparse.coo_array((L.data, (used[L.row], used[L.col])), shape=(V, V)).tocsr(), mass


def _cloud(geometry: Geometry) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """The local triangles cover a well sampled surface three times."""
    L, mass = _robust(geometry, "a point cloud")
    return (L / 3).tocsr(), mass / 3


def _upstream_cloud(points: np.ndarray) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    n_neighbours = min(N_NEIGHBOURS, len(points) - 1)
    L, mass = _call("a point cloud", "point_cloud_laplacian", np.ascontiguousarray(points), n_neighbors=n_neighbours)
    return L.tocsr(), mass


def _call(kind: str, function: str, *args: Any, **options: Any) -> tuple[scipy.sparse.coo_array, np.ndarray]:
    """L and the diagonal of M from a function of robust_laplacian, its failures as our errors."""
    import scipy.sparse

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
            f"{kind} must be one that robust_laplacian can take: it says {error}; repair the mesh"
        ) from error
    if not (np.isfinite(L.data).all() and np.isfinite(M.data).all()):
        raise MeshError(f"{kind} must have a finite robust Laplacian: this one has not; repair the mesh")
    return scipy.sparse.coo_array(L), M.diagonal()
