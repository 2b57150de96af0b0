"""Vertices and triangles become one checked, immutable `Mesh`, and values on it go back to the input's own vertices.

It is separate from the readers and the report so that a mesh made of arrays passes the same door as one from a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from flashheat.errors import MeshError

if TYPE_CHECKING:
    import torch

    from flashheat.mesh.report import MeshReport

Values = TypeVar("Values", np.ndarray, "torch.Tensor")


@dataclass(frozen=True, eq=False)
class Normalisation:
    """The map `p -> (p - centre) / scale` that took a mesh to its normal position, and its inverse.

    Args:
        centre: [3] float64, in the input's unit of length.
        scale: that unit of length again, > 0.
    """

    centre: np.ndarray
    scale: float

    def apply(self, points: np.ndarray) -> np.ndarray:
        """Points [..., 3] in the input's coordinates to normalised ones."""
        return (np.asarray(points, dtype=np.float64) - self.centre) / self.scale

    def undo(self, points: np.ndarray) -> np.ndarray:
        """Points [..., 3] in normalised coordinates back to the input's."""
        return np.asarray(points, dtype=np.float64) * self.scale + self.centre


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh, or a point cloud where there are no faces.

    Args:
        verts: [V,3] positions; lists, numpy and torch are taken; kept as contiguous float64.
        faces: [F,3] vertex indices 0..V-1; kept as contiguous int64. Empty for a point cloud.
        vertex_map: [V_in] int64; the input's vertex i is `verts[vertex_map[i]]` (welding). None: the input's own.
        face_map: [F] int64; triangle f was cut from the input's polygon `face_map[f]`. None: the input's own triangles.
        name: what messages and pages call it.

    Raises:
        MeshError: wrong shapes, no vertices, faces that are not integers or point outside `verts`, NaN or infinity.
    """

    verts: np.ndarray
    faces: np.ndarray
    vertex_map: np.ndarray | None = None
    face_map: np.ndarray | None = None
    name: str = ""

    def __post_init__(self) -> None:
        verts = _checked_verts(self.verts)
        faces = _checked_indices(self.faces, len(verts), "faces", (-1, 3))
        object.__setattr__(self, "verts", verts)
        object.__setattr__(self, "faces", faces)
        if self.vertex_map is not None:
            checked = _checked_indices(self.vertex_map, len(verts), "vertex_map", (-1,))
            object.__setattr__(self, "vertex_map", checked)
        if self.face_map is not None:
            checked = _checked_indices(self.face_map, np.iinfo(np.int64).max, "face_map", (-1,))
            if len(checked) != len(faces):
                raise MeshError(f"face_map must have one entry per face; got {len(checked)} for {len(faces)} faces")
            object.__setattr__(self, "face_map", checked)

    @property
    def n_verts(self) -> int:
        """Number of vertices V."""
        return len(self.verts)

    @property
    def n_faces(self) -> int:
        """Number of triangles F."""
        return len(self.faces)

    @property
    def is_point_cloud(self) -> bool:
        """Whether there are no faces."""
        return len(self.faces) == 0

    @property
    def area(self) -> float:
        """Total area of the triangles (length^2)."""
        size = order_of_size(self.verts)
        return float(face_areas(self.verts / size, self.faces).sum()) * size * size

    @classmethod
    def read(cls, path: str | PathLike[str], weld: bool | None = None) -> Mesh:
        """Read an OBJ, PLY, OFF or STL file; the order and number of its vertices are kept.

        Args:
            path: the file; its ending says which format.
            weld: merge exactly coincident vertices; `vertex_map` remembers which. None: where it is a soup, as an STL
                is: no two polygons share a vertex, or more than half of the vertices repeat the place of another.

        Raises:
            MeshError: in one line, why the file cannot be used.
        """
        from flashheat.mesh.read import read_mesh

        return read_mesh(path, weld)

    def check(self) -> MeshReport:
        """What is wrong with this mesh, and what that means for the result."""
        from flashheat.mesh.check import check_mesh

        return check_mesh(self)

    def normalise(self) -> tuple[Mesh, Normalisation]:
        """Move the mean of the vertices to 0 and scale the largest radius to 1; with the way back.

        Raises:
            MeshError: all vertices coincide, so there is no size to scale by.

        Source: `normalize_positions` of nmwsharp/diffusion-net, geometry.py.
        """
        size = order_of_size(self.verts)
        unit = self.verts / size
        centre = unit.mean(axis=0)
        centre += (unit - centre).mean(axis=0)  # the second pass removes the rounding of a mean far from 0
        radius = np.linalg.norm(unit - centre, axis=1).max()
        if np.ptp(unit, axis=0).max() == 0.0:
            raise MeshError(f"a mesh must have a size; all {self.n_verts} vertices{_of(self)} coincide; mend the input")
        normalisation = Normalisation(centre * size, float(radius) * size)
        return replace(self, verts=normalisation.apply(self.verts)), normalisation

    def scatter(self, values: Values) -> Values:
        """Values on this mesh's vertices, [V,...], to the input's own vertices, [V_in,...] (numpy or torch).

        Raises:
            MeshError: not one row per vertex.
        """
        if len(values) != self.n_verts:
            raise MeshError(f"values must have one row per vertex of the mesh; got {len(values)} for {self.n_verts}")
        return values if self.vertex_map is None else values[self.vertex_map]


def order_of_size(verts: np.ndarray) -> float:
    """The power of two next below the largest coordinate, 1 for none: dividing by it rounds nothing.

    Without it the squares of coordinates like 1e200 or 1e-200 would not fit.
    """
    peak = float(np.abs(verts).max())
    return math.ldexp(0.5, math.frexp(peak)[1]) if peak else 1.0


def face_areas(verts: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Areas [F] of the triangles, `|(b - a) x (c - a)| / 2`."""
    a, b, c = (verts[faces[:, corner]] for corner in range(3))
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def first_equal_row(rows: np.ndarray) -> np.ndarray:
    """For each row of [N,3] the lowest index of an equal row, [N] (0.0 and -0.0 are equal)."""
    order = np.lexsort(rows.T)
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    first = np.empty(len(rows), dtype=np.int64)
    first[order] = order[starts][np.cumsum(starts) - 1]  # lexsort is stable: each run begins with its lowest index
    return first


def _of(mesh: Mesh) -> str:
    return f" of {mesh.name}" if mesh.name else ""


def _as_numpy(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _checked_verts(values: Any) -> np.ndarray:
    verts = _as_numpy(values)
    if verts.size == 0:
        raise MeshError("a mesh must have at least one vertex; got none; check that the input is complete")
    if verts.ndim != 2 or verts.shape[1] != 3 or verts.dtype.kind not in "fiu":
        raise MeshError(f"verts must be real numbers of shape [V, 3]; got {verts.dtype} {list(verts.shape)}")
    verts = np.ascontiguousarray(verts, dtype=np.float64)
    bad = ~np.isfinite(verts).all(axis=1)
    if bad.any():
        raise MeshError(
            f"verts must be finite; {bad.sum()} of {len(verts)} hold NaN or infinity, the first is vertex "
            f"{bad.argmax()}; mend or remove them"
        )
    return verts


def _checked_indices(values: Any, limit: int, what: str, shape: tuple[int, ...]) -> np.ndarray:
    indices = _as_numpy(values)
    if indices.size == 0:
        return np.zeros([max(n, 0) for n in shape], dtype=np.int64)
    if indices.dtype.kind not in "iu":
        raise MeshError(f"{what} must be integers; got {indices.dtype}; convert them, e.g. with .astype(int)")
    if indices.ndim != len(shape) or indices.shape[1:] != shape[1:]:
        wanted = ["F", 3] if len(shape) == 2 else ["N"]
        raise MeshError(f"{what} must have shape {wanted}; got {list(indices.shape)}")
    bad = (indices < 0) | (indices >= limit)
    if bad.any():
        first = np.argwhere(bad)[0]
        raise MeshError(
            f"{what} must point at vertices 0..{limit - 1}; {bad.sum()} entries do not, the first is "
            f"{indices[tuple(first)]} in row {first[0]}; are the indices 1-based, or is the vertex list cut short?"
        )
    return np.ascontiguousarray(indices, dtype=np.int64)
