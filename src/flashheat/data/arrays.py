"""Arrays of values beside a mesh: read from and written to .npy, .npz and .txt, and written as properties of a PLY.

It is separate because a training set is read and a prediction written in the same formats.
"""

from __future__ import annotations

import io
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from flashheat.data.example import checked_rows
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.mesh import Mesh

ARRAY_ENDINGS = (".npy", ".npz", ".txt")
OUTPUT_ENDINGS = (*ARRAY_ENDINGS, ".ply")
_UNREADABLE = (OSError, ValueError, EOFError, BadZipFile)


def read_array(path: Path) -> np.ndarray:
    """One number a row, [N], from .npy, .npz (which must hold one array) or .txt.

    Raises:
        FlashheatError: the file cannot be read, or holds something else.
    """
    try:
        values = _read(path)
    except _UNREADABLE as error:
        raise FlashheatError(f"cannot read the array {path}: {_reason(error)}") from error
    return checked_rows(values, str(path))


def open_npz(path: Path, *keys: str) -> list[np.ndarray]:
    """The named arrays of an .npz file.

    Raises:
        FlashheatError: it cannot be read, or lacks one of them.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            absent = [key for key in keys if key not in file]
            if absent:
                raise ValueError(f"it must hold {', '.join(keys)}; {', '.join(absent)} absent")
            return [file[key] for key in keys]
    except _UNREADABLE as error:
        raise FlashheatError(f"cannot read {path}: {_reason(error)}") from error


def check_output(path: Path) -> None:
    """Whether a prediction can go to `path`, before any work is done for it.

    Raises:
        FlashheatError: an ending that is not an output's, or no such folder.
    """
    if path.suffix.lower() not in OUTPUT_ENDINGS:
        raise FlashheatError(f"the output must end in {', '.join(OUTPUT_ENDINGS)}; got {path.name}")
    if not path.parent.is_dir():
        raise FlashheatError(f"the output's folder must exist; {path.parent} does not; make it first")


def write_values(path: Path, name: str, values: np.ndarray, mesh: Mesh, at: str) -> None:
    """Write values on the input's own vertices or faces; the ending of `path` says how.

    Args:
        path: .npy, .npz (one array called `name`), .txt (one row each), or .ply (the mesh, with a property `name`).
        name: of the field.
        values: [V_in] or [F_in], on the vertices or faces that the input had.
        mesh: what `Mesh.read` made of the input.
        at: "vertices" or "faces".

    Raises:
        FlashheatError: another ending, or the file cannot be written.
    """
    check_output(path)
    buffer = io.BytesIO()
    ending = path.suffix.lower()
    if ending == ".npy":
        np.save(buffer, values)
    elif ending == ".npz":
        np.savez(buffer, allow_pickle=False, **{name: values})
    elif ending == ".txt":
        np.savetxt(buffer, values, fmt="%d" if values.dtype.kind in "iu" else "%.9g")
    else:
        buffer.write(_ply(name, values, mesh, at))
    write_atomically(path, buffer.getvalue())


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]


def _read(path: Path) -> np.ndarray:
    ending = path.suffix.lower()
    if ending == ".txt":
        return np.loadtxt(path, ndmin=1)
    loaded = np.load(path, allow_pickle=False)
    if ending == ".npy":
        return loaded
    with loaded:
        if len(loaded.files) != 1:
            raise ValueError(f"an .npz beside a mesh must hold one array; it holds {', '.join(loaded.files) or 'none'}")
        return loaded[loaded.files[0]]


def _ply(name: str, values: np.ndarray, mesh: Mesh, at: str) -> bytes:
    """A binary PLY of the input's vertices; faces of welded vertices point at the first input vertex of each."""
    verts, faces = mesh.scatter(mesh.verts), mesh.faces
    if mesh.vertex_map is not None:
        faces = np.unique(mesh.vertex_map, return_index=True)[1][faces]
    value_type, kind = ("<i4", "int") if values.dtype.kind in "iu" else ("<f4", "float")
    vertex_fields: list[tuple] = [("xyz", "<f8", 3)]
    face_fields: list[tuple] = [("n", "u1"), ("corners", "<i4", 3)]
    (face_fields if at == "faces" else vertex_fields).append((name, value_type))
    vertex_rows, face_rows = np.zeros(len(verts), vertex_fields), np.zeros(len(faces), face_fields)
    vertex_rows["xyz"], face_rows["n"], face_rows["corners"] = verts, 3, faces
    if at == "faces":
        face_rows[name] = values if mesh.face_map is None else values[mesh.face_map]
    else:
        vertex_rows[name] = values
    extra = f"property {kind} {name}"
    header = [
        "ply", "format binary_little_endian 1.0", f"element vertex {len(verts)}",
        *(f"property double {axis}" for axis in "xyz"), *([extra] if at == "vertices" else []),
        f"element face {len(faces)}", "property list uchar int vertex_indices", *([extra] if at == "faces" else []),
        "end_header",
    ]  # fmt: skip
    return ("\n".join(header) + "\n").encode() + vertex_rows.tobytes() + face_rows.tobytes()
