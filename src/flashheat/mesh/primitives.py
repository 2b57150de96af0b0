"""Numbers become small exact shapes: sphere, ellipsoid, torus, flat grid.

They are separate because tests, benchmarks and the embedded data need meshes whose right answers are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashheat.errors import MeshError
from flashheat.mesh.mesh import Mesh


def icosphere(subdivisions: int = 3) -> Mesh:
    """The unit sphere: an icosahedron split n times, V = 10 * 4^n + 2, faces outward.

    Args:
        subdivisions: n >= 0; each quarters the triangles and moves the new vertices onto the sphere.

    Raises:
        MeshError: n < 0.
    """
    if subdivisions < 0:
        raise MeshError(f"icosphere needs subdivisions >= 0; got {subdivisions}")
    verts, faces = _icosahedron()
    for _ in range(subdivisions):
        verts, faces = split(verts, faces)
        verts /= np.linalg.norm(verts, axis=1, keepdims=True)
    return Mesh(verts, faces, name=f"icosphere{subdivisions}")


def ellipsoid(axes: Sequence[float], subdivisions: int = 3) -> Mesh:
    """The ellipsoid (x/a)^2 + (y/b)^2 + (z/c)^2 = 1, an icosphere stretched; faces outward.

    Args:
        axes: the half axes a, b, c > 0 (length).
        subdivisions: as for `icosphere`.

    Raises:
        MeshError: not three positive axes.
    """
    stretch = np.asarray(axes, dtype=np.float64)
    if stretch.shape != (3,) or not (stretch > 0).all():
        raise MeshError(f"ellipsoid needs three half axes > 0; got {list(axes)}")
    sphere = icosphere(subdivisions)
    return Mesh(sphere.verts * stretch, sphere.faces, name="ellipsoid")


def grid(nx: int, ny: int) -> Mesh:
    """The unit square in z = 0 with nx by ny vertices, row by row along x; normals along +z.

    Raises:
        MeshError: fewer than 2 vertices a side.
    """
    if min(nx, ny) < 2:
        raise MeshError(f"grid needs at least 2 vertices a side; got {nx} by {ny}")
    y, x = np.meshgrid(np.linspace(0, 1, ny), np.linspace(0, 1, nx), indexing="ij")
    verts = np.stack([x, y, np.zeros_like(x)], axis=-1).reshape(-1, 3)
    index = np.arange(nx * ny).reshape(ny, nx)
    return Mesh(verts, _split_quads(index[:-1, :-1], index[:-1, 1:], index[1:, 1:], index[1:, :-1]), name="grid")


def torus(n: int = 48, m: int = 24) -> Mesh:
    """The torus about z, ring radius 1, tube radius 0.4, n vertices along the ring, m around the tube; faces outward.

    Raises:
        MeshError: n or m below 3.
    """
    if min(n, m) < 3:
        raise MeshError(f"torus needs at least 3 vertices each way; got {n} and {m}")
    u, v = np.meshgrid(2 * np.pi * np.arange(n) / n, 2 * np.pi * np.arange(m) / m, indexing="ij")
    ring = 1.0 + 0.4 * np.cos(v)
    verts = np.stack([ring * np.cos(u), ring * np.sin(u), 0.4 * np.sin(v)], axis=-1).reshape(-1, 3)
    index = np.arange(n * m).reshape(n, m)
    along, around = np.roll(index, -1, axis=0), np.roll(index, -1, axis=1)
    return Mesh(verts, _split_quads(index, along, np.roll(along, -1, axis=1), around), name="torus")


def _icosahedron() -> tuple[np.ndarray, np.ndarray]:
    """Twelve unit vertices and twenty outward faces; the faces are the triples of mutual neighbours."""
    golden = (1 + 5**0.5) / 2
    signs = np.array([[s, t] for s in (-1.0, 1.0) for t in (-golden, golden)])
    flat = np.column_stack([np.zeros(4), signs])
    verts = np.concatenate([np.roll(flat, shift, axis=1) for shift in range(3)])
    near = np.isclose(np.linalg.norm(verts[:, None] - verts[None], axis=2), 2.0)
    i, j, k = np.nonzero(near[:, :, None] & near[:, None, :] & near[None, :, :])
    faces = np.column_stack([i, j, k])
    outward = np.einsum("fi,fi->f", np.cross(verts[i], verts[j]), verts[k]) > 0
    faces = faces[outward & (i < j) & (i < k)]
    return verts / np.linalg.norm(verts[0]), faces


def split(verts: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each triangle into four, with one new vertex in the middle of each edge."""
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    edges, which = np.unique(edges, axis=0, return_inverse=True)
    a, b, c = faces.T
    ab, bc, ca = (len(verts) + which.reshape(-1, 3)).T
    quarters = [[a, ab, ca], [ab, b, bc], [ca, bc, c], [ab, bc, ca]]
    return np.concatenate([verts, verts[edges].mean(axis=1)]), np.concatenate([np.stack(q, axis=1) for q in quarters])


def _split_quads(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Quads with corners a, b, c, d in order, as two triangles each."""
    return np.stack([a, b, c, a, c, d], axis=-1).reshape(-1, 3)
