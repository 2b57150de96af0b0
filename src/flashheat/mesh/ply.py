"""The bytes of a PLY file, ASCII or binary of either endianness, become its vertices and polygons, in its own order.

It is separate because PLY describes its own layout, which takes more care than the other formats together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flashheat.errors import MeshError
from flashheat.mesh.formats import Polygons

_TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"},
    **{f"{sign}int{8 * size}": f"{kind}{size}" for sign, kind in (("", "i"), ("u", "u")) for size in (1, 2, 4, 8)},
}
_NOTHING = np.zeros(0, dtype=np.int64)

# All rows of one property, end to end, and for a list how many values belong to each row.
_Column = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class _Property:
    name: str
    value: np.dtype
    count: np.dtype | None = None  # of a list


@dataclass(frozen=True)
class _Element:
    name: str
    n_rows: int
    properties: list[_Property] = field(default_factory=list)


def parse_ply(data: bytes) -> Polygons:
    """A PLY file: positions of `vertex`, index lists of `face`; every other element and property is passed over.

    Raises:
        MeshError: what is wrong, without the file's name.
    """
    end = re.search(rb"\bend_header[ \t]*\r?\n", data)
    if not data.startswith(b"ply") or not end:
        raise MeshError("a PLY file must begin with 'ply' and have a whole header, down to 'end_header'; it does not")
    layout, elements = _parse_header(data[: end.start()].decode("ascii", errors="replace"))
    tables = (_read_ascii if layout == "ascii" else _read_binary)(elements, data[end.end() :])
    vertex = tables.get("vertex", {})
    if not {"x", "y", "z"} <= vertex.keys():
        raise MeshError("a PLY file must have an element 'vertex' with x, y and z; it has none")
    verts = np.column_stack([vertex[axis][0] for axis in "xyz"]).astype(np.float64)
    corners, sizes = _faces({element.name: element.n_rows for element in elements}, tables.get("face", {}))
    return Polygons(verts, corners, sizes)


def _faces(n_rows: dict[str, int], face: dict[str, _Column]) -> tuple[np.ndarray, np.ndarray]:
    if n_rows.get("face", 0) == 0:
        for other in ("tristrips", "edge"):
            if n_rows.get(other, 0):
                raise MeshError(f"a mesh must have faces, or points alone; the file has '{other}' elements and no face")
        return _NOTHING, _NOTHING
    lists = {name: column for name, column in face.items() if column[1] is not None}
    name = next((name for name in ("vertex_indices", "vertex_index", *lists) if name in lists), "")
    values, sizes = lists.get(name, (_NOTHING, None))
    if sizes is None or values.dtype.kind not in "iu":
        raise MeshError(f"PLY faces must have an integer list 'vertex_indices'; they have {sorted(face) or 'nothing'}")
    return values.astype(np.int64), sizes


def _parse_header(text: str) -> tuple[str, list[_Element]]:
    layout, order = "", "<"
    elements: list[_Element] = []
    for line in text.splitlines()[1:]:
        match line.split():
            case ["format", ("ascii" | "binary_little_endian" | "binary_big_endian") as layout, _]:
                order = ">" if layout == "binary_big_endian" else "<"
            case ["element", name, count] if count.isdecimal() and len(count) < 19:
                elements.append(_Element(name, int(count)))
            case ["property", "list", count, value, name] if elements and {count, value} <= _TYPES.keys():
                types = np.dtype(order + _TYPES[value]), np.dtype(order + _TYPES[count])
                elements[-1].properties.append(_Property(name, *types))
            case ["property", value, name] if elements and value in _TYPES:
                elements[-1].properties.append(_Property(name, np.dtype(order + _TYPES[value])))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise MeshError(f"a PLY header must hold format, element and property lines; it has '{line.strip()}'")
    _check_layout(layout, elements)
    return layout, elements


def _check_layout(layout: str, elements: Sequence[_Element]) -> None:
    names = [[element.name for element in elements], *([p.name for p in element.properties] for element in elements)]
    twice = [name for group in names for name in set(group) if group.count(name) > 1]
    counts = [p.name for element in elements for p in element.properties if p.count and p.count.kind == "f"]
    if not layout or twice or counts:
        raise MeshError(f"a PLY header must name its format, no name twice, no count a float; see {twice + counts}")


def _read_ascii(elements: Sequence[_Element], body: bytes) -> dict[str, dict[str, _Column]]:
    rows = [line.split() for line in body.decode("ascii", errors="replace").splitlines() if line.strip()]
    promised = sum(element.n_rows for element in elements)
    if len(rows) != promised:
        raise MeshError(
            f"the header promises {promised} lines of data; {len(rows)} follow"
            "; the file is cut short or its counts are wrong"
        )
    tables, at = {}, 0
    for element in elements:
        tables[element.name] = _ascii_table(element, rows[at : at + element.n_rows])
        at += element.n_rows
    return tables


def _ascii_table(element: _Element, rows: Sequence[Sequence[str]]) -> dict[str, _Column]:
    words: dict[str, list[float]] = {p.name: [] for p in element.properties}
    sizes: dict[str, list[int]] = {p.name: [] for p in element.properties if p.count}
    for number, row in enumerate(rows):
        at = 0
        try:
            for p in element.properties:
                size = 1
                if p.count:
                    size = int(row[at])
                    sizes[p.name].append(size)
                    at += 1
                words[p.name] += map(float if p.value.kind == "f" else int, row[at : at + size])
                at += size
        except (ValueError, IndexError) as error:
            raise MeshError(f"row {number} of '{element.name}' must hold what the header names; {error}") from error
        if at > len(row):  # more are passed over: MeshLab writes values that its header does not name
            raise MeshError(f"row {number} of '{element.name}' must hold {at} numbers; it has {len(row)}")
    counts = {name: np.array(per_row, dtype=np.int64) for name, per_row in sizes.items()}
    return {name: (np.array(values), counts.get(name)) for name, values in words.items()}


def _read_binary(elements: Sequence[_Element], body: bytes) -> dict[str, dict[str, _Column]]:
    tables, at = {}, 0
    for element in elements:
        if any(p.count for p in element.properties):
            tables[element.name], at = _binary_lists(element, body, at)
        else:
            tables[element.name], at = _binary_table(element, body, at)
    if body[at:].strip():
        raise MeshError(f"the data must end where the header says; {len(body) - at} bytes follow; its counts are wrong")
    return tables


def _binary_table(element: _Element, body: bytes, at: int) -> tuple[dict[str, _Column], int]:
    record = np.dtype([(p.name, p.value) for p in element.properties])
    end = at + element.n_rows * record.itemsize
    _check_length(element, body, end)
    table = np.frombuffer(body[at:end], record) if end > at else np.zeros(0, record)
    return {p.name: (table[p.name], None) for p in element.properties}, end


def _binary_lists(element: _Element, body: bytes, at: int) -> tuple[dict[str, _Column], int]:
    """Rows of unequal length can only be walked: where one ends is known when its lists have been seen."""
    pieces: dict[str, list[bytes]] = {p.name: [] for p in element.properties}
    sizes: dict[str, list[int]] = {p.name: [] for p in element.properties if p.count}
    for _ in range(element.n_rows):
        for p in element.properties:
            size = 1
            if p.count:
                order: Literal["big", "little"] = "big" if p.count.str[0] == ">" else "little"
                size = int.from_bytes(body[at : at + p.count.itemsize], order)
                sizes[p.name].append(size)
                at += p.count.itemsize
            end = at + size * p.value.itemsize
            pieces[p.name].append(body[at:end])
            at = end
        _check_length(element, body, at)
    columns: dict[str, _Column] = {}
    for p in element.properties:
        values = np.frombuffer(b"".join(pieces[p.name]), p.value)
        columns[p.name] = values, np.array(sizes[p.name], dtype=np.int64) if p.count else None
    return columns, at


def _check_length(element: _Element, body: bytes, end: int) -> None:
    if end > len(body):
        raise MeshError(
            f"the header promises {element.n_rows} rows of '{element.name}', at least {end} bytes; {len(body)} follow"
            "; the file is cut short or its counts are wrong"
        )
