"""A path becomes a `Mesh`: the right reader is chosen, polygons are cut into triangles, soups are welded.

It is separate so that each reader only says what its file holds, and every refusal names the file in one place.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from flashheat.errors import MeshError
from flashheat.mesh.formats import Polygons, parse_obj, parse_off, parse_stl
from flashheat.mesh.mesh import Mesh, first_equal_row
from flashheat.mesh.ply import parse_ply

_READERS: dict[str, Callable[[bytes], Polygons]] = {
    ".obj": parse_obj,
    ".off": parse_off,
    ".ply": parse_ply,
    ".stl": parse_stl,
}
_FANS_TRIED = 64  # of a polygon that is not convex; bounds the work for one with thousands of corners
_FLAT = 1e-12  # a triangle's area over its polygon's


def read_mesh(path: str | PathLike[str], weld: bool | None = None) -> Mesh:
    """Read a mesh file: the public door is `Mesh.read`, which says what the arguments mean.

    Raises:
        MeshError: in one line, why the file cannot be used.
    """
    path = Path(path)
    try:
        polygons = _parse(path)
        faces, face_map = _triangulate(polygons, path.name)
        mesh = Mesh(polygons.verts, faces, face_map=face_map, name=path.stem)
    except (OSError, MeshError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MeshError(f"cannot read {path}: {reason}") from error
    return weld_coincident(mesh) if weld or (weld is None and _is_soup(polygons)) else mesh


def weld_coincident(mesh: Mesh) -> Mesh:
    """Merge exactly coincident vertices; each keeps its first place in the order, and `vertex_map` leads back.

    Faces stay, also those that welding shows to be degenerate: `Mesh.check` reports them.
    """
    kept, welded = np.unique(first_equal_row(mesh.verts), return_inverse=True)
    if len(kept) == mesh.n_verts:
        return mesh
    vertex_map = welded if mesh.vertex_map is None else welded[mesh.vertex_map]
    return replace(mesh, verts=mesh.verts[kept], faces=welded[mesh.faces], vertex_map=vertex_map)


def _parse(path: Path) -> Polygons:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise MeshError("it is a folder; name a file in it")
    if not stat.S_ISREG(mode):  # reading a pipe would wait for ever
        raise MeshError("it is not an ordinary file")
    parse = _READERS.get(path.suffix.lower())
    if parse is None:
        raise MeshError(f"the name of a mesh file must end in {', '.join(_READERS)}; convert it to one of them")
    data = path.read_bytes()
    if not data:
        raise MeshError("a mesh file must have contents; it is empty (0 bytes)")
    return parse(data)


def _is_soup(polygons: Polygons) -> bool:
    """Whether no vertex is shared by two polygons, or more than half of the vertices repeat the place of another."""
    if len(polygons.sizes) < 2:
        return False
    n_repeated = (first_equal_row(polygons.verts) != np.arange(len(polygons.verts))).sum()
    return bool(np.bincount(polygons.corners).max() == 1 or 2 * n_repeated > len(polygons.verts))


def _triangulate(polygons: Polygons, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Triangles [F,3], and the polygon that each came from (None where all are triangles already)."""
    _check_polygons(polygons)
    if (polygons.sizes == 3).all():
        return polygons.corners.reshape(-1, 3), None
    start, worst = _best_starts(polygons)
    folded = worst < -_FLAT
    if folded.any():
        logging.getLogger("flashheat").warning(
            "%s: %d polygons are too far from convex to be cut into a fan; their triangles overlap; the first is %d",
            *(name, folded.sum(), folded.argmax()),
        )
    return _fans(polygons, start)


def _check_polygons(polygons: Polygons) -> None:
    small = polygons.sizes < 3
    if small.any():
        face = small.argmax()
        raise MeshError(f"a face must have at least three corners; face {face} has {polygons.sizes[face]}")
    outside = (polygons.corners < 0) | (polygons.corners >= len(polygons.verts))
    if outside.any():
        faces = np.repeat(np.arange(len(polygons.sizes)), polygons.sizes)[outside]
        raise MeshError(
            f"faces must point at the file's {len(polygons.verts)} vertices; {len(np.unique(faces))} do not, the first "
            f"is face {faces[0]} with vertex {polygons.corners[outside][0]} (counted from 0)"
        )


def _fans(polygons: Polygons, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each polygon as triangles around its corner number `start` [P]; triangles [F,3] and their polygon [F]."""
    sizes = polygons.sizes
    polygon = np.repeat(np.arange(len(sizes)), sizes - 2)
    step = np.arange(len(polygon)) - np.repeat(np.cumsum(sizes - 2) - (sizes - 2), sizes - 2)
    corner = start[polygon, None] + np.column_stack([np.zeros_like(step), step + 1, step + 2])
    begin = (np.cumsum(sizes) - sizes)[polygon, None]
    return polygons.corners[begin + corner % sizes[polygon, None]], polygon


def _best_starts(polygons: Polygons) -> tuple[np.ndarray, np.ndarray]:
    """The corner [P] to fan each polygon from, and how its worst triangle lies: corner 0, unless another is better."""
    start = np.zeros(len(polygons.sizes), dtype=np.int64)
    worst = _worst(polygons, start)
    poor = worst <= _FLAT
    if poor.any():
        some = replace(polygons, corners=polygons.corners[np.repeat(poor, polygons.sizes)], sizes=polygons.sizes[poor])
        for corner in range(1, min(int(some.sizes.max()), _FANS_TRIED)):
            trial = corner % some.sizes
            lie = _worst(some, trial)
            start[poor] = np.where(lie > worst[poor], trial, start[poor])
            worst[poor] = np.fmax(lie, worst[poor])
    return start, worst


def _worst(polygons: Polygons, start: np.ndarray) -> np.ndarray:
    """The least of each polygon's triangles [P]: its area over the polygon's; below 0 where it is turned over."""
    faces, polygon = _fans(polygons, start)
    a, b, c = (polygons.verts[faces[:, corner]] for corner in range(3))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        normals = np.cross(b - a, c - a)
        whole = np.column_stack([np.bincount(polygon, axis) for axis in normals.T])[polygon]
        share = np.einsum("fi,fi->f", normals, whole) / np.einsum("fi,fi->f", whole, whole)
    return np.minimum.reduceat(share, np.flatnonzero(np.diff(polygon, prepend=-1)))
