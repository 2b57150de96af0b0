"""What was found on a mesh, as numbers for a program and as lines for a person.

It is separate from the examination so that holding or showing a report costs no sparse-matrix library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

FAULTS = {
    "unreferenced vertices": "no face uses them: they have no area, and diffusion gives 0 there",
    "duplicate vertices": "at the place of another: where faces meet there, no heat crosses; weld=True joins them",
    "repeated-index faces": "they use a vertex twice and have no area: they add nothing",
    "zero-area faces": "their corners lie on a line: huge cotangents, so eigenpairs and gradients nearby suffer",
    "duplicate faces": "the corners of another, either way round: that area counts twice",
    "non-manifold edges": "more than two faces meet: the robust Laplacian is needed, normals there mean little",
    "non-manifold vertices": "fans of faces touch at a point alone: heat passes there, gradients mix the fans",
    "inconsistent faces": "turned against their neighbours: normals and gradient features are wrong there",
    "one-sided faces": "their part cannot be oriented, as a Moebius strip: gradient features jump at some seam",
    "inside-out faces": "the closed surface is oriented inwards: all normals have the opposite sign",
}
_N_COMPONENTS_SHOWN = 8


@dataclass(frozen=True)
class Fault:
    """One kind of fault (a key of `FAULTS`), how many, the `first` few indices (an edge: its two vertices)."""

    kind: str
    count: int
    first: tuple[int | tuple[int, int], ...]
    meaning: str

    def __str__(self) -> str:
        where = "first" if self.count > len(self.first) else "at"
        return f"{self.kind}: {self.count}, {where} {', '.join(map(str, self.first))}; {self.meaning}"


@dataclass(frozen=True)
class Component:
    """One connected part: its vertices, faces, area (length^2) and `share` of the whole area."""

    n_verts: int
    n_faces: int
    area: float
    share: float

    def modes(self, k_eig: int) -> float:
        """How many of the lowest `k_eig` eigenpairs live here, by Weyl's law `N(lambda) ~ area lambda / (4 pi)`.

        So the area's share of k_eig; at least 1 (the constant) and at most one a vertex.
        """
        return min(float(self.n_verts), max(1.0, self.share * k_eig))


@dataclass(frozen=True)
class MeshReport:
    """What `Mesh.check` found.

    Args:
        name: of the mesh.
        n_verts, n_faces: of the mesh;  n_input_verts: of the input, before welding.
        area: of the surface (length^2);  diagonal: of its bounding box (length).
        offset: from the origin to the middle of the box, in diagonals.
        n_boundary_edges: edges of a single face;  n_holes: the loops that they form.
        euler: V - E + F, without unreferenced vertices and repeated-index faces; 2 for a sphere.
        oriented: neighbouring faces agree;  orientable: turning some faces could make them.
        components: the connected parts, the largest area first.
        faults: what is wrong;  notes: what is not wrong but worth knowing.
        refusals: why no operators can be made of it; empty for a usable mesh.
    """

    name: str
    n_verts: int
    n_faces: int
    n_input_verts: int
    area: float
    diagonal: float
    offset: float
    n_boundary_edges: int
    n_holes: int
    euler: int
    oriented: bool
    orientable: bool
    components: tuple[Component, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether operators can be made of it; faults may still spoil the result where they are."""
        return not self.refusals

    def count(self, kind: str) -> int:
        """How many faults of that kind (a key of `FAULTS`) there are.

        Raises:
            KeyError: there is no such kind.
        """
        return {**dict.fromkeys(FAULTS, 0), **{fault.kind: fault.count for fault in self.faults}}[kind]

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON can hold it."""
        return {**asdict(self), "usable": self.usable}

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._table_of_components()])

    def _summary(self) -> Iterator[str]:
        what = f"faces {self.n_faces}, area {self.area:.6g}" if self.n_faces else "a point cloud"
        yield f"{self.name or 'mesh'}: vertices {self.n_verts}, {what}, bounding box diagonal {self.diagonal:.6g}"
        yield "usable: yes" if self.usable else f"usable: no; {'; '.join(self.refusals)}"
        yield "faults:" if self.faults else "faults: none"
        yield from (f"  {fault}" for fault in self.faults)
        if self.notes:
            yield "notes:"
        yield from (f"  {note}" for note in self.notes)

    def _table_of_components(self) -> Iterator[str]:
        if len(self.components) < 2:
            return
        yield "components     vertices        faces         area   modes of 128"
        for number, part in enumerate(self.components[:_N_COMPONENTS_SHOWN]):
            area = f"{100 * part.share:.3g} %"
            yield f"{number:>10} {part.n_verts:>12} {part.n_faces:>12} {area:>12} {part.modes(128):>14.0f}"
        if len(self.components) > _N_COMPONENTS_SHOWN:
            yield f"  and {len(self.components) - _N_COMPONENTS_SHOWN} more, smaller"
