"""A user's own folder: mesh files, each with an array of the same name beside it, become a split.

It is separate because here the data may be anything, so every way of not fitting has its own clear line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from flashheat.data.arrays import ARRAY_ENDINGS, read_array
from flashheat.data.example import At, Example, Split, checked_field, checked_labels
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh

MESH_ENDINGS = (".obj", ".off", ".ply", ".stl")

Kind = Literal["classes", "field"]


def load_folder(
    root: str | Path | None,
    kind: Kind,
    test_fraction: float,
    seed: int,
    stream: np.ndarray | None = None,
    at: At | None = None,
) -> Split:
    """Read every mesh of a folder with its array, and keep a random part of them for testing.

    Args:
        root: the folder; `a.obj` belongs with `a.npy`, `a.npz` or `a.txt`, which has one row for each vertex or each
            face that the *file* has, in the file's order (before any welding or triangulation).
        kind: "classes" (0, 1, 2, ...) or "field" (real numbers, at vertices).
        test_fraction: of the meshes, rounded; at least one mesh is on either side. 0: all of them are for testing.
        seed: of the choice.
        stream: [3] free stream in the meshes' coordinates, the same for all.
        at: where the rows live; None: found from their number.

    Raises:
        FlashheatError: the folder is empty, an array is absent or does not fit its mesh, names repeat.
    """
    paths = _mesh_paths(root)
    examples = [_read_example(path, kind, stream, at) for path in paths]
    _check_alike(examples)
    n_classes = int(max(e.target.max() for e in examples)) + 1 if kind == "classes" else 0
    if test_fraction == 0:
        return Split([], examples, n_classes)
    if len(paths) < 2:
        raise FlashheatError(f"{root} must hold at least two meshes, to train on and to test on; it holds {len(paths)}")
    order = np.random.default_rng(seed).permutation(len(paths))
    n_test = min(max(round(test_fraction * len(paths)), 1), len(paths) - 1)
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    return Split([examples[i] for i in train], [examples[i] for i in test], n_classes)


def on_mesh(values: np.ndarray, mesh: Mesh, at: At, kind: Kind) -> np.ndarray:
    """Values on the input's vertices or faces, [V_in] or [F_in], as values on the mesh's own, [V] or [F].

    Where several input vertices were welded into one, it gets their mean, or the class that most of them have.
    """
    if at == "faces":
        return values if mesh.face_map is None else values[mesh.face_map]
    if mesh.vertex_map is None:
        return values
    if kind == "field":
        return np.bincount(mesh.vertex_map, values) / np.bincount(mesh.vertex_map)
    pairs, counts = np.unique(np.column_stack([mesh.vertex_map, values]), axis=0, return_counts=True)
    order = np.lexsort([-counts, pairs[:, 0]])
    return pairs[order, 1][np.unique(pairs[order, 0], return_index=True)[1]]


def _mesh_paths(root: str | Path | None) -> list[Path]:
    if root is None or not Path(root).is_dir():
        raise FlashheatError(f"folder needs a data root that exists, with a mesh and an array in each pair; got {root}")
    paths = sorted(path for path in Path(root).iterdir() if path.suffix.lower() in MESH_ENDINGS)
    if not paths:
        raise FlashheatError(f"{root} must hold mesh files ({', '.join(MESH_ENDINGS)}); it holds none")
    twice = [path for path, other in zip(paths[1:], paths, strict=False) if path.stem == other.stem]
    if twice:
        raise FlashheatError(f"mesh files must differ before the ending; {twice[0].stem} is there twice in {root}")
    return paths


def _read_example(path: Path, kind: Kind, stream: np.ndarray | None, at: At | None) -> Example:
    arrays = [array for ending in ARRAY_ENDINGS if (array := path.with_suffix(ending)).is_file()]
    if len(arrays) != 1:
        got = "none is there" if not arrays else "there are " + ", ".join(array.name for array in arrays)
        wanted = ", ".join(path.stem + ending for ending in ARRAY_ENDINGS)
        raise FlashheatError(f"{path} must have one array beside it ({wanted}); {got}")
    mesh = Mesh.read(path)
    values = read_array(arrays[0])
    at = _where(len(values), mesh, path.name, arrays[0].name, at)
    values = checked_labels(values, str(arrays[0])) if kind == "classes" else checked_field(values, str(arrays[0]))
    if kind == "field" and at == "faces":
        raise FlashheatError(
            f"a field must have one row a vertex; {arrays[0].name} has one a face of {path.name} ({len(values)}); "
            "average it to the vertices"
        )
    return Example(mesh, on_mesh(values, mesh, at, kind), at, stream)


def _where(n_rows: int, mesh: Mesh, mesh_name: str, array_name: str, at: At | None) -> At:
    n_verts = mesh.n_verts if mesh.vertex_map is None else len(mesh.vertex_map)
    n_faces = mesh.n_faces if mesh.face_map is None else int(mesh.face_map.max()) + 1
    fits: list[At] = [where for where, count in (("vertices", n_verts), ("faces", n_faces)) if count == n_rows]  # type: ignore[misc]
    if at is not None:
        fits = [where for where in fits if where == at]
    if len(fits) == 1:
        return fits[0]
    counts = f"{array_name} has {n_rows} rows, {mesh_name} {n_verts} vertices and {n_faces} faces"
    if fits:
        raise FlashheatError(f"rows must say where they live; {counts}; choose labels_at vertices or faces")
    raise FlashheatError(f"an array must have one row for each vertex or each face of its mesh; {counts}")


def _check_alike(examples: list[Example]) -> None:
    for example in examples:
        if example.at != examples[0].at:
            raise FlashheatError(
                f"all arrays must live on the same kind of element; {examples[0].mesh.name}'s are at {examples[0].at}, "
                f"{example.mesh.name}'s at {example.at}"
            )
