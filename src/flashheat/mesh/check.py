"""A mesh is examined: what is wrong, how many, where first, and what that means for diffusion on it.

It is separate from `Mesh` because a fault is told, never mended behind the user's back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashheat.mesh.mesh import Mesh, face_areas, first_equal_row, order_of_size
from flashheat.mesh.report import FAULTS, Component, Fault, MeshReport
from flashheat.mesh.topology import (
    Edges,
    count_holes,
    find_edges,
    find_sides,
    find_split_vertices,
    label_components,
)

_N_SHOWN = 5  # first indices of a fault
_FEW_MODES = 4
_FEWEST_POINTS = 4
_FLAT = 1e-8  # height over longest edge: below it, cotangents pass what float32 can add to ordinary ones
_FAR = 1e3  # diagonals from the origin: beyond it, float32 coordinates keep about 4 digits of the shape


@dataclass(frozen=True)
class _Examined:
    """A mesh and all that its report is made of. Faces that repeat an index are left out of everything but `proper`."""

    mesh: Mesh
    unit: np.ndarray  # [V,3] in a box of diagonal 1 about 0, so that no area overflows or vanishes
    diagonal: float
    offset: float
    proper: np.ndarray  # [F'] the faces that do not repeat an index
    faces: np.ndarray  # [F',3]
    areas: np.ndarray  # [F'] in unit coordinates
    flat: np.ndarray  # [F']
    edges: Edges
    turned: np.ndarray
    one_sided: np.ndarray
    places: np.ndarray  # [V] the first vertex at the same place

    @property
    def open_edges(self) -> np.ndarray:
        return self.edges.ends[self.edges.n_faces == 1]


def check_mesh(mesh: Mesh) -> MeshReport:
    """Examine a mesh: the public door is `Mesh.check`. About a second for 130,000 vertices."""
    seen = _examine(mesh)
    components = _components(seen)
    n_holes = count_holes(seen.edges, mesh.n_verts)
    return MeshReport(
        name=mesh.name,
        n_verts=mesh.n_verts,
        n_faces=mesh.n_faces,
        n_input_verts=mesh.n_verts if mesh.vertex_map is None else len(mesh.vertex_map),
        area=mesh.area,
        diagonal=seen.diagonal,
        offset=seen.offset,
        n_boundary_edges=len(seen.open_edges),
        n_holes=n_holes,
        euler=int(_used(seen.faces, mesh.n_verts).sum()) - len(seen.edges.ends) + len(seen.faces),
        oriented=not len(seen.turned) and not len(seen.one_sided),
        orientable=not len(seen.one_sided),
        components=components,
        faults=tuple(_fault(kind, where) for kind, where in _find_faults(seen).items() if len(where)),
        notes=tuple(_notes(seen, n_holes, components)),
        refusals=tuple(_refusals(seen)),
    )


def _examine(mesh: Mesh) -> _Examined:
    unit, diagonal, offset = _to_unit_box(mesh.verts)
    proper = np.flatnonzero((mesh.faces != np.roll(mesh.faces, 1, axis=1)).all(axis=1))
    faces = mesh.faces[proper]
    areas = face_areas(unit, faces)
    edges = find_edges(faces, mesh.n_verts)
    turned, one_sided = find_sides(edges)
    return _Examined(
        mesh=mesh,
        unit=unit,
        diagonal=diagonal,
        offset=offset,
        proper=proper,
        faces=faces,
        areas=areas,
        flat=_are_flat(unit, faces, areas, offset),
        edges=edges,
        turned=turned,
        one_sided=one_sided,
        places=first_equal_row(mesh.verts),
    )


def _to_unit_box(verts: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The vertices in a box of diagonal 1 about 0, that diagonal, and how far the box was from 0, in diagonals."""
    size = order_of_size(verts)
    low, high = verts.min(axis=0) / size, verts.max(axis=0) / size
    centre, diagonal = (low + high) / 2, float(np.linalg.norm(high - low))
    unit = (verts / size - centre) / (diagonal or 1.0)
    return unit, diagonal * size, float(np.linalg.norm(centre)) / (diagonal or 1.0)


def _are_flat(unit: np.ndarray, faces: np.ndarray, areas: np.ndarray, offset: float) -> np.ndarray:
    """Faces [F] whose height is nothing beside the longest edge, or beside the rounding of the coordinates."""
    longest = np.max([np.linalg.norm(unit[faces[:, c]] - unit[faces[:, c - 1]], axis=1) for c in range(3)], axis=0)
    rounding = 8 * np.finfo(np.float64).eps * (offset + 1)
    return 2 * areas <= longest * np.maximum(_FLAT * longest, rounding)


def _find_faults(seen: _Examined) -> dict[str, np.ndarray]:
    """The indices of every kind in `FAULTS`; vertices, faces, or pairs of vertices for an edge."""
    n_verts, proper = seen.mesh.n_verts, seen.proper
    found = {
        "unreferenced vertices": np.flatnonzero(~_used(seen.mesh.faces, n_verts) & (seen.mesh.n_faces > 0)),
        "duplicate vertices": _repeats(seen.places),
        "repeated-index faces": np.flatnonzero(~_used(proper, seen.mesh.n_faces)),
        "zero-area faces": proper[seen.flat],
        "duplicate faces": proper[_repeats(first_equal_row(np.sort(seen.faces, axis=1)))],
        "non-manifold edges": seen.edges.ends[seen.edges.n_faces > 2],
        "non-manifold vertices": find_split_vertices(seen.edges, n_verts),
        "inconsistent faces": proper[seen.turned],
        "one-sided faces": proper[seen.one_sided],
    }
    closed_and_oriented = (seen.edges.n_faces == 2).all() and not len(seen.turned) and not len(seen.one_sided)
    a, b, c = (seen.unit[seen.faces[:, corner]] for corner in range(3))
    volume = np.einsum("fi,fi->", np.cross(a, b), c) / 6
    inward = closed_and_oriented and volume < -1e-6 * seen.areas.sum() ** 1.5  # more than rounding beside a ball's
    found["inside-out faces"] = proper if inward else proper[:0]
    return found


def _used(indices: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(indices.ravel(), minlength=n) > 0


def _repeats(first: np.ndarray) -> np.ndarray:
    return np.flatnonzero(first != np.arange(len(first)))


def _fault(kind: str, where: np.ndarray) -> Fault:
    first = tuple(tuple(i) if isinstance(i, list) else i for i in where[:_N_SHOWN].tolist())
    return Fault(kind, len(where), first, FAULTS[kind])


def _components(seen: _Examined) -> tuple[Component, ...]:
    if not len(seen.faces):
        return ()
    of_vertex = label_components(seen.edges, seen.mesh.n_verts)
    of_face = of_vertex[seen.faces[:, 0]]
    n_verts, n_faces, unit_areas = np.bincount(of_vertex), np.bincount(of_face), np.bincount(of_face, seen.areas)
    shares = unit_areas / (unit_areas.sum() or 1.0)
    with np.errstate(over="ignore"):
        areas = unit_areas * seen.diagonal * seen.diagonal
    order = [part for part in np.argsort(-unit_areas, kind="stable") if n_faces[part]]  # not a lone vertex
    return tuple(Component(int(n_verts[i]), int(n_faces[i]), float(areas[i]), float(shares[i])) for i in order)


def _notes(seen: _Examined, n_holes: int, components: tuple[Component, ...]) -> Iterator[str]:
    mesh = seen.mesh
    if mesh.vertex_map is not None:
        yield f"welded: input vertices {len(mesh.vertex_map)}, places {mesh.n_verts}; scatter() takes values back"
    if mesh.face_map is not None:
        yield f"polygons: {mesh.face_map[-1] + 1}, cut into triangles; face_map leads back"
    if n_holes:
        yield f"open boundaries: {n_holes}, edges {len(seen.open_edges)}; heat does not flow out there"
    if len(components) > 1:
        few = sum(part.modes(128) < _FEW_MODES for part in components)
        poor = f"; with fewer than {_FEW_MODES} of 128 modes: {few}, diffusion hardly resolves them" if few else ""
        yield f"components: {len(components)}; no heat flows between them{poor}"
    if seen.offset > _FAR:
        yield f"far from the origin: {seen.offset:.3g} diagonals; float32 would lose the shape, normalise() first"


def _refusals(seen: _Examined) -> Iterator[str]:
    n_places = seen.mesh.n_verts - len(_repeats(seen.places))
    if seen.mesh.n_faces and seen.flat.all():
        yield "no face has an area; as points alone, Mesh(verts, []), it may do"
    elif seen.mesh.n_faces and not 0 < seen.mesh.area < np.inf:
        yield f"float64 cannot hold the area of a mesh of size {seen.diagonal:.3g}; change its unit, or normalise() it"
    if seen.mesh.is_point_cloud and n_places < _FEWEST_POINTS:
        yield f"a point cloud needs at least {_FEWEST_POINTS} distinct points; it has {n_places}"
    elif seen.mesh.is_point_cloud and np.linalg.svd(seen.unit - seen.unit.mean(axis=0), compute_uv=False)[1] < _FLAT:
        yield "the points of a cloud must span a surface; they lie on one line"
