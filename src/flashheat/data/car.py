"""ShapeNet cars with the surface pressure of a CFD run at their vertices: `car_*.npz` files become a split.

It is separate because its files, its stream and its terms are its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashheat.data.arrays import open_npz
from flashheat.data.example import Example, Split, checked_field, checked_rows
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh

WHERE = "get the ShapeNet-Car pressure data from its owners under their research terms"


def load_car(root: str | Path | None, stream: np.ndarray | None) -> Split:
    """Train on all cars but the last, test on the last one.

    The target is the pressure as the files have it: *normalised* by their authors, so errors in it compare with
    published figures only after undoing that. Positions are `vertices_physical`.

    Args:
        root: folder with `car_*.npz`.
        stream: [3] direction of the free stream in the files' coordinates.

    Raises:
        FlashheatError: the folder is absent or has fewer than two cars, or a file is not as described.
    """
    if root is None or not Path(root).is_dir():
        raise FlashheatError(f"car needs the folder with car_*.npz as data root; got {root}; {WHERE}")
    paths = sorted(Path(root).glob("car_*.npz"))
    if len(paths) < 2:
        raise FlashheatError(f"{root} must hold at least two files car_*.npz; it holds {len(paths)}; {WHERE}")
    cars = [_read_car(path, stream) for path in paths]
    return Split(cars[:-1], cars[-1:], notes=("Target: pressure as normalised by the data's authors.",))


def _read_car(path: Path, stream: np.ndarray | None) -> Example:
    verts, faces, pressure = open_npz(path, "vertices_physical", "faces", "pressure")
    mesh = Mesh(verts, faces, name=path.stem)
    source = f"`pressure` of {path}"
    target = checked_field(checked_rows(pressure, source), source)
    if len(target) != mesh.n_verts:
        raise FlashheatError(f"{path} must have one pressure a vertex; got {len(target)} for {mesh.n_verts} vertices")
    return Example(mesh, target, stream=stream)
