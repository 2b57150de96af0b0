"""The bytes of an OBJ, OFF or STL file become its vertices and polygons, in the file's own order.

These readers are our own because the general libraries reorder or split vertices, lose which polygon a triangle came
from, and take some damaged files for good ones; PLY, the longest, has a file to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from flashheat.errors import MeshError


@dataclass(frozen=True)
class Polygons:
    """What a file says: verts [V,3] float64, and P polygons as `corners` [sum sizes] and `sizes` [P], int64."""

    verts: np.ndarray
    corners: np.ndarray
    sizes: np.ndarray


def parse_obj(data: bytes) -> Polygons:
    """A Wavefront OBJ file: `v` and `f` lines; texture, normals, colours, groups and materials are passed over.

    Raises:
        MeshError: what is wrong, without the file's name.
    """
    rows: list[list[str]] = []
    polygons: list[list[str]] = []
    n_before: list[int] = []  # vertices above each face: relative indices count back from there
    n_lines = 0
    for words in _lines(re.sub(r"\\\r?\n", " ", _decode(data))):
        if words[0] == "v":
            rows.append(words[1:4])
        elif words[0] == "f":
            polygons.append([corner.partition("/")[0] for corner in words[1:]])
            n_before.append(len(rows))
        elif words[0] == "l":
            n_lines += 1
    if n_lines and not polygons:
        raise MeshError(f"a mesh must have faces or points alone; the file holds {n_lines} line elements and no face")
    sizes = np.array([len(polygon) for polygon in polygons], dtype=np.int64)
    index = integers(chain.from_iterable(polygons), "face indices")
    if (index == 0).any():
        face = np.repeat(np.arange(len(sizes)), sizes)[index == 0][0]
        raise MeshError(f"OBJ indices must count from 1 (or back from -1); face {face} holds 0; add 1 to all of them")
    last = np.repeat(np.array(n_before, dtype=np.int64), sizes)
    return Polygons(coordinates(rows), np.where(index < 0, last + index, index - 1), sizes)


def parse_off(data: bytes) -> Polygons:
    """An ASCII OFF file, with or without its first word, colours and normals passed over.

    Raises:
        MeshError: what is wrong, without the file's name.
    """
    text = _decode(data).lstrip()
    word = re.match(r"[A-Za-z0-9]*?OFF", text)
    if (word and not re.fullmatch(r"(ST)?C?N?OFF", word[0])) or re.match(r"\w*OFF\s+BINARY", text):
        raise MeshError("only ASCII OFF files of three-dimensional points are read; convert it, e.g. to PLY")
    lines = list(_lines(text[word.end() :] if word else text))
    counts = integers(lines[0][:2] if lines else [], "the counts on the first line")
    if len(counts) < 2 or (counts < 0).any():
        raise MeshError("an OFF file must begin with its numbers of vertices and faces; they are missing or negative")
    n_verts, n_faces = (int(count) for count in counts)
    if len(lines) - 1 != n_verts + n_faces:
        raise MeshError(
            f"the header promises {n_verts} vertices and {n_faces} faces, one a line; {len(lines) - 1} lines follow"
            "; the file is cut short or its counts are wrong"
        )
    rows, polygons = lines[1 : n_verts + 1], lines[n_verts + 1 :]
    sizes = integers((polygon[0] for polygon in polygons), "the counts of corners of faces")
    short = [len(polygon) <= size or size < 0 for polygon, size in zip(polygons, sizes, strict=True)]
    if any(short):
        raise MeshError(f"a face must list the corners that it counts; face {short.index(True)} does not")
    corners = chain.from_iterable(polygon[1 : size + 1] for polygon, size in zip(polygons, sizes, strict=True))
    return Polygons(coordinates(rows), integers(corners, "face indices"), sizes)


def parse_stl(data: bytes) -> Polygons:
    """A binary or ASCII STL file: three vertices of its own for each triangle. Its normals are passed over.

    Raises:
        MeshError: what is wrong, without the file's name.
    """
    n_faces = int.from_bytes(data[80:84], "little")
    if len(data) >= 84 and len(data) == 84 + 50 * n_faces:  # not the first word: many binary files begin with "solid"
        record = np.dtype([("normal", "<f4", 3), ("verts", "<f4", (3, 3)), ("attribute", "<u2")])
        return _triangles(np.frombuffer(data, record, offset=84)["verts"].reshape(-1, 3).astype(np.float64))
    if data[:256].lstrip()[:5].lower() == b"solid" and b"\0" not in data:
        return _parse_ascii_stl(data)
    raise MeshError(
        f"a binary STL file of {n_faces} triangles must have {84 + 50 * n_faces} bytes; it has {len(data)}"
        "; the file is cut short or its count is wrong"
    )


def _parse_ascii_stl(data: bytes) -> Polygons:
    rows: list[list[str]] = []
    n_before: list[int] = []  # vertices above each facet
    complete = False
    for words in _lines(_decode(data).lower()):
        if words[0] == "vertex":
            rows.append(words[1:4])
        elif words[0] == "facet":
            n_before.append(len(rows))
        complete = words[0] in ("endsolid", "end")
    if not complete:
        raise MeshError("an ASCII STL file must end with 'endsolid'; it does not; the file is cut short")
    sizes = np.diff([*n_before, len(rows)])
    if (sizes != 3).any() or (n_before or [0])[0] != 0:
        facet = int((sizes != 3).argmax())
        raise MeshError(f"an STL facet must have three vertices; facet {facet} of {len(sizes)} has another number")
    return _triangles(coordinates(rows))


def coordinates(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Rows of words, of which the first three are x, y, z, as [V,3] float64.

    Raises:
        MeshError: fewer than three words, or not numbers.
    """
    for vertex, row in enumerate(rows):
        if len(row) < 3:
            raise MeshError(f"a vertex must have three coordinates; vertex {vertex} has {len(row)}")
    try:
        return np.array([float(word) for row in rows for word in row[:3]]).reshape(-1, 3)
    except ValueError as error:
        raise MeshError(f"coordinates must be numbers; {error}") from error


def integers(words: Iterable[str], what: str) -> np.ndarray:
    """Words as int64.

    Raises:
        MeshError: naming `what`, where they are not integers.
    """
    try:
        return np.fromiter(map(int, words), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise MeshError(f"{what} must be integers; {error}") from error


def _triangles(verts: np.ndarray) -> Polygons:
    return Polygons(verts, np.arange(len(verts)), np.full(len(verts) // 3, 3))


def _decode(data: bytes) -> str:
    return data.decode("utf-8-sig", errors="replace")


def _lines(text: str) -> Iterable[list[str]]:
    """The words of each line that has any, without comments."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words
