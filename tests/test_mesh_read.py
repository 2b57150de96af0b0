"""The readers keep the file's own vertices in the file's own order, or say in one line why they cannot."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashheat.errors import MeshError
from flashheat.mesh import Mesh, icosphere

BALL = icosphere(1)
V, F = BALL.verts.astype(np.float32).astype(np.float64), BALL.faces
TRIANGLE = "v 0 0 0\nv 1 0 0\nv 0 1 0\n"


def write(path: Path, contents: str | bytes) -> Path:
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return path


def numbers(row: np.ndarray) -> str:
    return " ".join(str(x) for x in row.tolist())


def obj_text() -> str:
    return "".join(f"v {numbers(v)}\n" for v in V) + "".join(f"f {numbers(f + 1)}\n" for f in F)


def off_text() -> str:
    return (
        f"OFF\n{len(V)} {len(F)} 0\n" + "".join(numbers(v) + "\n" for v in V) + "".join(f"3 {numbers(f)}\n" for f in F)
    )


def ply_bytes(layout: str = "ascii", real: str = "float") -> bytes:
    """With a colour between the coordinates and the faces, as scanners write it."""
    header = (
        f"ply\nformat {layout} 1.0\ncomment made here\nelement vertex {len(V)}\nproperty {real} x\n"
        f"property {real} y\nproperty {real} z\nproperty uchar red\nelement face {len(F)}\n"
        "property list uchar int vertex_indices\nend_header\n"
    )
    if layout == "ascii":
        rows = [f"{numbers(v)} 7" for v in V] + [f"3 {numbers(f)}" for f in F]
        return (header + "\n".join(rows)).encode()
    order, letter = ">" if layout == "binary_big_endian" else "<", {"float": "f", "double": "d"}[real]
    body = b"".join(struct.pack(f"{order}3{letter}B", *v, 7) for v in V)
    return header.encode() + body + b"".join(struct.pack(f"{order}B3i", 3, *f) for f in F)


def stl_bytes() -> bytes:
    body = b"".join(struct.pack("<12fH", 0, 0, 0, *V[f].ravel(), 0) for f in F)
    return b"solid as many programs begin".ljust(80) + struct.pack("<I", len(F)) + body


def stl_text() -> str:
    facets = [
        "facet normal 0 0 0\n outer loop\n"
        + "".join(f"  vertex {numbers(V[corner])}\n" for corner in face)
        + " endloop\nendfacet\n"
        for face in F
    ]
    half = len(facets) // 2
    return f"solid a vertex name\n{''.join(facets[:half])}endsolid\nsolid b\n{''.join(facets[half:])}endsolid b\n"


INDEXED = {
    "a.obj": obj_text().encode(),
    "a.off": off_text().encode(),
    "a.ply": ply_bytes(),
    "little.ply": ply_bytes("binary_little_endian"),
    "big.ply": ply_bytes("binary_big_endian"),
    "double.ply": ply_bytes("binary_little_endian", "double"),
}
SOUPS = {"binary.stl": stl_bytes(), "ascii.STL": stl_text().encode()}


@pytest.mark.parametrize("name", INDEXED)
def test_indexed_formats_keep_every_vertex_and_face_in_order(name: str, tmp_path: Path) -> None:
    mesh = Mesh.read(write(tmp_path / name, INDEXED[name]))
    np.testing.assert_array_equal(mesh.verts, V)
    np.testing.assert_array_equal(mesh.faces, F)
    assert mesh.vertex_map is None
    assert mesh.face_map is None
    assert mesh.name == Path(name).stem


@pytest.mark.parametrize("name", SOUPS)
def test_a_welded_stl_is_the_solid_and_scatter_leads_back(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, SOUPS[name])
    mesh = Mesh.read(path)
    np.testing.assert_array_equal(mesh.verts[mesh.faces], V[F])
    report = mesh.check()
    assert (report.euler, len(report.components), report.faults) == (2, 1, ())
    assert report.n_input_verts == 3 * len(F)
    np.testing.assert_array_equal(mesh.scatter(mesh.verts), V[F].reshape(-1, 3))
    first_seen = [mesh.vertex_map.tolist().index(i) for i in range(mesh.n_verts)]
    assert first_seen == sorted(first_seen)
    soup = Mesh.read(path, weld=False)
    assert soup.n_verts == 3 * len(F)
    assert len(soup.check().components) == len(F)


def test_trimesh_reads_and_writes_the_same_shapes(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh", reason="trimesh, the other reader, is not installed")
    solid = trimesh.Trimesh(V, F, process=False)
    for ending in ("obj", "off", "ply", "stl"):
        path = tmp_path / f"theirs.{ending}"
        solid.export(path)
        ours = Mesh.read(path)
        np.testing.assert_allclose(ours.verts[ours.faces], V[F], atol=1e-7)
    for name, contents in {**INDEXED, **SOUPS}.items():
        path = write(tmp_path / name, contents.replace(b"a vertex name", b"a"))  # which trimesh would take for one
        theirs = trimesh.load(path, process=False, force="mesh")
        np.testing.assert_allclose(Mesh.read(path).verts[Mesh.read(path).faces], theirs.triangles, atol=1e-7)


def test_welding_is_for_soups_and_for_those_who_ask(tmp_path: Path) -> None:
    seam = write(
        tmp_path / "seam.obj", obj_text() + f"v {numbers(V[F[0, 0]])}\nf {len(V) + 1} {numbers(F[0, 1:] + 1)}\n"
    )
    assert Mesh.read(seam).n_verts == len(V) + 1
    welded = Mesh.read(seam, weld=True)
    assert welded.n_verts == len(V)
    assert welded.vertex_map[-1] == F[0, 0]
    assert welded.check().count("duplicate faces") == 1
    corners = "".join(f"v {numbers(v)}\n" for v in V[F].reshape(-1, 3))
    soup = write(
        tmp_path / "soup.obj", corners + "".join(f"f {i + 1} {i + 2} {i + 3}\n" for i in range(0, 3 * len(F), 3))
    )
    assert Mesh.read(soup).n_verts == len(V)
    assert Mesh.read(soup, weld=False).n_verts == 3 * len(F)
    zeros = Mesh.read(
        write(tmp_path / "zero.obj", "v 0 0 0\nv -0 0 -0.0\nv 1 0 0\nv 0 1 0\nf 1 3 4\nf 2 4 3\n"), weld=True
    )
    assert zeros.n_verts == 3


@pytest.mark.parametrize(
    "text",
    [
        TRIANGLE + "f 1 2 3\n",
        "f 1 2 3\n" + TRIANGLE,
        TRIANGLE + "f -3 -2 -1\n",
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nf -3 -2 -1\nv 9 9 9\n",
        TRIANGLE + "f 1 2 \\\n 3\n",
        TRIANGLE.replace("\n", "\r\n") + "f 1 2 \\\r\n3\r\n",
        "mtllib x.mtl\no a\ng f v\n" + TRIANGLE + "vt 0 0\nvn 0 0 1\nusemtl m\ns 1\nf 1/1/1 2//1 3/1 # last\n\n",
        "\ufeff# \u00e9\n  v 0 0 0 1 0 0\n\tv 1 0 0 0.5 1 0\nv 0 1 0 0 0 1\nf 1 2 3",
    ],
)
def test_obj_dialects_are_one_triangle(text: str, tmp_path: Path) -> None:
    mesh = Mesh.read(write(tmp_path / "t.obj", text))
    np.testing.assert_array_equal(mesh.verts[:3], [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(mesh.faces, [[0, 1, 2]])


@pytest.mark.parametrize(
    "text",
    [
        "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n",
        "3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2",
        "OFF # c\n\n# comment\n3 1\n0 0 0 # a\n\n1 0 0\n0 1 0\n3 0 1 2\n",
        "OFF 3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2 0.1 0.2 0.3\n",
        "  OFF3 1 0\n0 0 0\n1 0 0\n0 1 0\n3\t0 1 2 255 0 0\n",
        "COFF\r\n3 1 0\r\n0 0 0 1 1 1 1\r\n1 0 0 1 1 1 1\r\n0 1 0 1 1 1 1\r\n3 0 1 2\r\n",
        "STCNOFF\n3 1 0\n0 0 0 0 0 1 1 0 0 1\n1 0 0 0 0 1 1 0 0 1\n0 1 0 0 0 1 1 0 0 1\n3 0 1 2\n",
    ],
)
def test_off_dialects_are_one_triangle(text: str, tmp_path: Path) -> None:
    mesh = Mesh.read(write(tmp_path / "t.off", text))
    np.testing.assert_array_equal(mesh.verts, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(mesh.faces, [[0, 1, 2]])


HEAD = "ply\nformat {} 1.0\nelement vertex 5\nproperty float x\nproperty float y\nproperty float z\n"
POINTS = [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.5, 2.0, 0.0)]
FACES = "element face 2\nproperty uchar flag\nproperty list ushort float uv\nproperty list uint8 uint32 vertex_index\n"


def test_mixed_polygons_with_texture_keep_their_vertices_in_ascii_and_binary(tmp_path: Path) -> None:
    text = (HEAD + FACES).format("ascii") + "end_header\n" + "".join(f"{x} {y} {z}\n" for x, y, z in POINTS)
    text += "1 2 0.5 0.5 4 0 1 2 3\n0 0 3 3 2 4 9 9 9\n"  # more numbers than the header names, as MeshLab writes
    body = b"".join(struct.pack(">3f", *point) for point in POINTS)
    body += struct.pack(">BH2fB4I", 1, 2, 0.5, 0.5, 4, 0, 1, 2, 3) + struct.pack(">BHB3I", 0, 0, 3, 3, 2, 4)
    header = (HEAD + FACES).format("binary_big_endian") + "end_header\r\n"
    for contents in (text.encode(), header.encode() + body):
        mesh = Mesh.read(write(tmp_path / "mixed.ply", contents))
        np.testing.assert_array_equal(mesh.verts, POINTS)
        np.testing.assert_array_equal(mesh.faces, [[0, 1, 2], [0, 2, 3], [3, 2, 4]])
        np.testing.assert_array_equal(mesh.face_map, [0, 0, 1])
        assert mesh.vertex_map is None


@pytest.mark.parametrize("start", range(5))
def test_a_polygon_that_is_not_convex_is_cut_without_overlap(start: int, tmp_path: Path) -> None:
    arrow = np.roll([[0, 0], [2, 1], [0, 2], [0.4, 1.1], [0.4, 0.9]], start, axis=0)
    verts = "".join(f"v {x} {y} 0\n" for x, y in arrow)
    mesh = Mesh.read(write(tmp_path / "arrow.obj", verts + "f 1 2 3 4 5\n"))
    x, y = arrow.T
    shoelace = abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
    assert mesh.n_faces == 3
    assert mesh.area == pytest.approx(shoelace)
    np.testing.assert_array_equal(mesh.face_map, [0, 0, 0])


def test_a_corner_in_the_middle_of_a_side_makes_no_flat_triangle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "v 0 0 0\nv 1 0 0\nv 2 0 0\nv 2 1 0\nv 0 1 0\nf 1 2 3 4 5\nf 1 2 3\n"
    mesh = Mesh.read(write(tmp_path / "side.obj", text))
    np.testing.assert_array_equal(mesh.faces, [[1, 2, 3], [1, 3, 4], [1, 4, 0], [0, 1, 2]])
    assert mesh.check().count("zero-area faces") == 1  # the triangle that was flat in the file
    text = "v 0 0 0\nv 1 0 0\nv 2 0 0\nv 3 0 0\nv 2 1 0\nv 1 2 0\nv 0 3 0\nf 1 2 3 4 5 6 7\n"
    assert Mesh.read(write(tmp_path / "sides.obj", text)).area == pytest.approx(
        4.5
    )  # flat whatever the fan, not folded
    assert not caplog.text


def test_a_polygon_that_no_fan_can_cut_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    angles = np.arange(10) * np.pi / 5
    star = np.column_stack([np.cos(angles), np.sin(angles)]) * np.where(np.arange(10) % 2, 0.3, 1)[:, None]
    verts = "".join(f"v {x} {y} 0\n" for x, y in star)
    mesh = Mesh.read(write(tmp_path / "star.obj", verts + "f 1 2 3 4 5 6 7 8 9 10\nf 1 2 3\n"))
    assert mesh.n_faces == 9
    assert "star.obj: 1 polygons are too far from convex" in caplog.text


def test_files_of_points_are_point_clouds(tmp_path: Path) -> None:
    points = "".join(f"{x} {y} {z}\n" for x, y, z in POINTS)
    header = HEAD.format("ascii") + "element face 0\nproperty list uchar int vertex_indices\nend_header\n"
    for name, text in [("p.ply", header + points), ("p.off", "OFF\n5 0 0\n" + points), ("p.obj", "v 1 2 3\np 1\n" * 5)]:
        cloud = Mesh.read(write(tmp_path / name, text))
        assert cloud.is_point_cloud
        assert cloud.n_verts == 5
        assert cloud.vertex_map is None


PLY = HEAD.format("ascii")
ROWS = "0 0 0\n" * 5
REFUSED = [
    ("a.obj", TRIANGLE + "f 0 1 2\n", "must count from 1 .* face 0 holds 0"),
    ("a.obj", TRIANGLE + "f 1 2 3\nf 1 2 4\n", "first is face 1 with vertex 3"),
    ("a.obj", TRIANGLE + "f -4 -3 -2\n", "first is face 0 with vertex -1"),
    ("a.obj", TRIANGLE + "f 1 2\n", "at least three corners; face 0 has 2"),
    ("a.obj", TRIANGLE + "f\n", "at least three corners; face 0 has 0"),
    ("a.obj", TRIANGLE + "f 1 2 x\n", "face indices must be integers; .*'x'"),
    ("a.obj", TRIANGLE + "f 1 2 99999999999999999999\n", "face indices must be integers"),
    ("a.obj", "v 0 0\nf 1 1 1\n", "three coordinates; vertex 0 has 2"),
    ("a.obj", "v 0 0 z\n", "must be numbers; .*'z'"),
    ("a.obj", "v 0 0 nan\n", "must be finite; 1 of 1"),
    ("a.obj", "v 0 0 1e999\n", "must be finite; 1 of 1"),
    ("a.obj", "v 0 0 0\nv 1 0 0\nl 1 2\n", "1 line elements and no face"),
    ("a.obj", "# nothing\n", "at least one vertex"),
    ("a.off", "OFF\n", "must begin with its numbers"),
    ("a.off", "OFF\n-3 1 0\n", "must begin with its numbers"),
    ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n", "promises 3 vertices and 1 faces, one a line; 3 lines"),
    ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n3 0 1 2\n", "5 lines follow"),
    ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1\n", "must list the corners that it counts; face 0"),
    ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n-1 0 1\n", "must list the corners that it counts; face 0"),
    ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1.5 2\n", "face indices must be integers"),
    ("a.off", "OFF BINARY\n3 1 0\n", "only ASCII OFF"),
    ("a.off", "4OFF\n1 0 0\n0 0 0 1\n", "only ASCII OFF"),
    ("a.off", "not a mesh at all\n", "must be integers"),
    ("a.ply", "plx\n", "must begin with 'ply'"),
    ("a.ply", "ply\nformat ascii 1.0\nelement vertex 5\n", "down to 'end_header'"),
    ("a.ply", PLY.replace("format ascii 1.0\n", "") + "end_header\n" + ROWS, "must name its format"),
    ("a.ply", PLY + "property float x\nend_header\n" + ROWS, r"no name twice.*\['x'\]"),
    ("a.ply", PLY + "property quad w\nend_header\n" + ROWS, "it has 'property quad w'"),
    (
        "a.ply",
        PLY + "element face 1\nproperty list float int vertex_indices\nend_header\n" + ROWS + "3 0 1 2",
        "a float",
    ),
    ("a.ply", PLY + "end_header\n" + ROWS[:-6], "promises 5 lines of data; 4 follow"),
    ("a.ply", PLY + "end_header\n" + ROWS + "1 2 3", "promises 5 lines of data; 6 follow"),
    ("a.ply", PLY + "end_header\n" + ROWS[:-6] + "0 0\n", "row 4 of 'vertex' must hold 3 numbers; it has 2"),
    ("a.ply", PLY + "end_header\n" + ROWS[:-6] + "0 0 k\n", "row 4 of 'vertex'.*'k'"),
    ("a.ply", PLY + "element face 1\nproperty int flag\nend_header\n" + ROWS + "1\n", r"integer list .*\['flag'\]"),
    (
        "a.ply",
        PLY + "element tristrips 1\nproperty list int int i\nend_header\n" + ROWS + "1 0\n",
        "'tristrips' elements",
    ),
    ("a.ply", PLY + "element edge 1\nproperty int vertex1\nend_header\n" + ROWS + "1\n", "'edge' elements"),
    ("a.ply", PLY.replace(" z", " w") + "end_header\n" + ROWS, "'vertex' with x, y and z"),
    ("a.ply", ply_bytes("binary_little_endian")[:-1], "promises 80 rows of 'face'"),
    ("a.ply", ply_bytes("binary_little_endian") + b"\1", "1 bytes follow"),
    ("a.stl", stl_bytes()[:-1], "must have 4084 bytes; it has 4083"),
    ("a.stl", b"x" * 80 + struct.pack("<I", 4000000000), "triangles must have 200000000084 bytes; it has 84"),
    ("a.stl", stl_text()[: len(stl_text()) // 2].encode(), "must end with 'endsolid'"),
    ("a.stl", stl_text().replace("vertex", "", 3).encode(), "must have three vertices; facet 0 of 80"),
    ("a.stl", "solid empty\nendsolid\n", "at least one vertex"),
    ("a.stl", b"too short", "a binary STL file"),
    ("a.vtk", "# vtk", "must end in .obj, .off, .ply, .stl"),
    ("a", "v 0 0 0", "must end in .obj"),
    ("a.obj", "", r"empty \(0 bytes\)"),
]


@pytest.mark.parametrize(("name", "contents", "words"), REFUSED, ids=lambda value: str(value)[-40:])
def test_damaged_files_are_refused_in_one_line_that_names_them(name, contents, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, contents)
    with pytest.raises(MeshError, match=words) as refusal:
        Mesh.read(path)
    assert str(refusal.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(refusal.value)


def test_paths_that_are_no_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeshError, match="No such file"):
        Mesh.read(tmp_path / "absent.obj")
    (tmp_path / "folder.obj").mkdir()
    with pytest.raises(MeshError, match="it is a folder"):
        Mesh.read(str(tmp_path / "folder.obj"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.off")
        with pytest.raises(MeshError, match="not an ordinary file"):
            Mesh.read(tmp_path / "pipe.off")

    def forbidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "secret.obj", TRIANGLE)
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(MeshError, match=r"secret\.obj: Permission denied"):
        Mesh.read(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted({**INDEXED, **SOUPS})),
    kept=st.floats(0, 1),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
def test_no_damage_does_more_than_be_refused(name: str, kept: float, flips: list, tmp_path: Path) -> None:
    """Files cut anywhere, with any bytes changed: a mesh that can be checked, or a MeshError, never anything else."""
    contents = bytearray({**INDEXED, **SOUPS}[name])
    for place, value in flips:
        contents[place % min(len(contents), 2000)] = value
    path = write(tmp_path / name, bytes(contents[: int(kept * len(contents)) if kept > 0.5 else None]))
    try:
        mesh = Mesh.read(path)
    except MeshError as error:
        message = str(error)
    else:
        message = str(mesh.check().to_dict())
        assert np.isfinite(mesh.verts).all()
    assert "\n" not in message
