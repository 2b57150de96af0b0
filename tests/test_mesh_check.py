"""The report counts what is there: each fault is made on purpose, and nothing depends on the order of vertices."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashheat.mesh import Mesh, MeshReport, grid, icosphere, torus
from flashheat.mesh.report import FAULTS, Component

BALL = icosphere(2)
V, F = BALL.verts, BALL.faces


def kinds(report: MeshReport) -> dict[str, int]:
    return {fault.kind: fault.count for fault in report.faults}


def first(report: MeshReport, kind: str) -> tuple:
    return next(fault.first for fault in report.faults if fault.kind == kind)


def moebius(n: int = 40) -> Mesh:
    """A strip of width 0.6 with a half turn: two rows of triangles, the ends joined upside down."""
    u, s = np.meshgrid(2 * np.pi * np.arange(n) / n, [-0.3, 0.0, 0.3], indexing="ij")
    ring = 1 + s * np.cos(u / 2)
    verts = np.stack([ring * np.cos(u), ring * np.sin(u), s * np.sin(u / 2)], axis=2).reshape(-1, 3)
    row = np.arange(3 * n).reshape(n, 3)
    after = np.concatenate([row[1:], row[:1, ::-1]])
    a, b, c, d = row[:, :-1], row[:, 1:], after[:, :-1], after[:, 1:]
    return Mesh(verts, np.stack([a, c, b, b, c, d], axis=2).reshape(-1, 3))


def messy() -> Mesh:
    """Two parts, one holed and partly turned; a fin, a doubled face, a sliver, loose and doubled vertices."""
    faces = F[2:].copy()
    faces[10:13] = faces[10:13, ::-1]
    small = V * 0.3 + [3, 0, 0]
    verts = np.concatenate([V, small, [[5, 5, 5], [2, 2, 2]], V[:1], [(V[F[50, 0]] + V[F[50, 1]]) / 2]])
    n = 2 * len(V)
    extra = [[*F[30, :2], n + 1], F[60], [*F[50, :2], n + 3], [4, 4, 9], [n + 2, 7, 8]]
    return Mesh(verts, np.concatenate([faces, F + len(V), extra]))


def test_a_sphere_has_no_fault() -> None:
    report = BALL.check()
    assert report.usable
    assert report.faults == report.notes == report.refusals == ()
    assert (report.euler, report.n_holes, report.oriented, report.orientable) == (2, 0, True, True)
    assert report.n_input_verts == report.n_verts == 162
    assert report.area == BALL.area
    assert report.diagonal == pytest.approx(np.linalg.norm(np.ptp(V, axis=0)))
    assert [part.share for part in report.components] == [1.0]


def test_each_fault_is_counted_and_pointed_at() -> None:
    loose = Mesh(np.concatenate([V, [[9, 9, 9]]]), F).check()
    assert kinds(loose) == {"unreferenced vertices": 1}
    assert first(loose, "unreferenced vertices") == (162,)
    doubled = Mesh(V, np.concatenate([F, F[:2], F[4:5, ::-1]])).check()
    assert doubled.count("duplicate faces") == 3
    assert first(doubled, "duplicate faces") == (320, 321, 322)
    edges = {frozenset(pair) for face in F[[0, 1, 4]] for pair in combinations(face.tolist(), 2)}
    assert doubled.count("non-manifold edges") == len(edges)
    assert doubled.n_holes == doubled.n_boundary_edges == 0
    repeated = Mesh(V, np.concatenate([F, [[3, 3, 5], [8, 8, 8]]])).check()
    assert kinds(repeated) == {"repeated-index faces": 2}
    assert repeated.euler == 2
    fin = Mesh(np.concatenate([V, [[2, 2, 2]]]), np.concatenate([F, [[*F[0, :2], 162]]])).check()
    assert kinds(fin) == {"non-manifold edges": 1}
    assert first(fin, "non-manifold edges") == (tuple(sorted(F[0, :2].tolist())),)
    with pytest.raises(KeyError):
        fin.count("no such kind")


def test_vertices_where_fans_only_touch_are_found() -> None:
    two_triangles = Mesh(np.eye(5, 3) + np.arange(15).reshape(5, 3) % 7, [[0, 1, 2], [2, 3, 4]]).check()
    assert kinds(two_triangles) == {"non-manifold vertices": 1}
    assert first(two_triangles, "non-manifold vertices") == (2,)
    other = np.concatenate([[0], 161 + np.arange(1, 162)])
    balls = Mesh(np.concatenate([V, (V + 2 * V[0] * 0.999)[1:]]), np.concatenate([F, other[F]])).check()
    assert kinds(balls) == {"non-manifold vertices": 1}
    assert len(balls.components) == 1  # heat does pass through the point


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, len(F) - 1), max_size=150))
def test_exactly_the_turned_faces_are_named(turned: set[int]) -> None:
    faces = F.copy()
    faces[list(turned)] = faces[list(turned), ::-1]
    report = Mesh(V, faces).check()
    assert report.count("inconsistent faces") == len(turned)
    assert report.oriented == (not turned)
    assert report.orientable
    if turned:
        assert first(report, "inconsistent faces") == tuple(sorted(turned)[:5])


def test_a_moebius_strip_cannot_be_oriented_and_has_one_boundary() -> None:
    report = moebius().check()
    assert kinds(report) == {"one-sided faces": 160}
    assert (report.oriented, report.orientable) == (False, False)
    assert (report.n_holes, report.n_boundary_edges, report.euler) == (1, 80, 0)


def test_a_closed_surface_that_faces_inwards_is_told_and_an_open_one_is_not() -> None:
    assert kinds(Mesh(V, F[:, ::-1]).check()) == {"inside-out faces": 320}
    assert kinds(Mesh(V + 1e8, F[:, ::-1]).check()) == {"inside-out faces": 320}
    assert kinds(Mesh(V, F[1:, ::-1]).check()) == {}
    hollow = Mesh(np.concatenate([V, 0.5 * V]), np.concatenate([F, 162 + F[:, ::-1]]))  # a wall, rightly oriented
    assert kinds(hollow.check()) == {}


def test_holes_are_loops_of_boundary_edges() -> None:
    far_apart = [0, int(np.argmin(V[F].mean(axis=1) @ V[F[0, 0]]))]
    holed = Mesh(V, np.delete(F, far_apart, axis=0)).check()
    assert (holed.n_holes, holed.n_boundary_edges, holed.euler) == (2, 6, 0)
    assert any(note.startswith("open boundaries: 2, edges 6") for note in holed.notes)
    assert (grid(5, 4).check().n_holes, torus(8, 6).check().n_holes) == (1, 0)


def test_components_share_the_modes_by_area() -> None:
    parts = [V, V * 0.5 + [3, 0, 0], V * 0.1 + [0, 4, 0]]
    report = Mesh(np.concatenate(parts), np.concatenate([F + 162 * i for i in range(3)])).check()
    assert [part.n_faces for part in report.components] == [320, 320, 320]
    shares = np.array([1, 0.25, 0.01]) / 1.26
    assert [part.share for part in report.components] == pytest.approx(list(shares))
    assert sum(part.area for part in report.components) == pytest.approx(report.area)
    assert [part.modes(128) for part in report.components] == pytest.approx(list(128 * shares))
    assert Component(4, 4, 1e-9, 1e-9).modes(128) == 1.0
    assert Component(4, 4, 1.0, 0.5).modes(128) == 4.0
    assert "with fewer than 4 of 128 modes: 1" in str(report)
    assert str(report).splitlines()[-1].split() == ["2", "162", "320", "0.794", "%", "1"]


def test_zero_area_is_relative_to_the_face_not_to_the_mesh() -> None:
    for scale in (1e-20, 1.0, 1e30):
        flat = Mesh(np.concatenate([V, [V[F[0, 0]] + V[F[0, 1]]]]) * scale, [*F, [*F[0, :2], 162]])
        middle = flat.verts.copy()
        middle[162] /= 2
        assert Mesh(middle, flat.faces).check().count("zero-area faces") == 1
        assert flat.check().count("zero-area faces") == 0
    tiny_part = Mesh(np.concatenate([V, V * 1e-6 + [1e3, 0, 0]]), np.concatenate([F, F + 162])).check()
    assert kinds(tiny_part) == {}
    needle = Mesh([[0, 0, 0], [1, 0, 0], [0.5, 1e-7, 0]], [[0, 1, 2]])
    assert kinds(needle.check()) == {}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9999))
def test_nothing_depends_on_the_order_of_vertices_and_faces(seed: int) -> None:
    mesh, rng = messy(), np.random.default_rng(seed)
    order = rng.permutation(mesh.n_verts)
    place = np.argsort(order)
    shuffled = Mesh(mesh.verts[order], rng.permutation(place[mesh.faces]))
    one, other = mesh.check(), shuffled.check()
    assert set(kinds(one)) == FAULTS.keys() - {"one-sided faces", "inside-out faces"}
    assert kinds(one) == kinds(other)
    assert one.notes == other.notes
    for name in ("n_holes", "n_boundary_edges", "euler", "oriented", "orientable", "offset", "diagonal", "usable"):
        assert getattr(one, name) == getattr(other, name)
    for part, twin in zip(one.components, other.components, strict=True):
        assert (part.n_verts, part.n_faces) == (twin.n_verts, twin.n_faces)
        assert part.area == pytest.approx(twin.area)


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (Mesh(V[:3], []), "at least 4 distinct points; it has 3"),
        (Mesh(np.concatenate([V[:3], V[:3]]), []), "at least 4 distinct points; it has 3"),
        (Mesh(np.outer(np.arange(9.0), [1, 2, 3]) + 7, []), "they lie on one line"),
        (Mesh(V * [1, 0, 0], F), "no face has an area"),
        (Mesh(V * 0, F), "no face has an area"),
        (Mesh(V, [[0, 0, 1]]), "no face has an area"),
        (Mesh(V * 1e200, F), "float64 cannot hold the area"),
        (Mesh(V * 1e-200, F), "float64 cannot hold the area"),
    ],
)
def test_a_mesh_of_which_nothing_can_be_made_is_not_usable(mesh: Mesh, words: str) -> None:
    report = mesh.check()
    assert not report.usable
    assert words in report.refusals[0]
    assert f"usable: no; {report.refusals[0]}" in str(report)


@pytest.mark.parametrize("mesh", [Mesh(V[:4], []), Mesh(V * [1, 1, 0], []), Mesh(V[:3], [[0, 1, 2]]), messy()])
def test_the_least_that_is_usable(mesh: Mesh) -> None:
    assert mesh.check().usable


def test_the_report_reads_well_and_goes_into_json() -> None:
    report = messy().check()
    text = str(report)
    assert text.splitlines()[1] == "usable: yes"
    assert "  inconsistent faces: 3, at 10, 11, 12; turned against their neighbours" in text
    assert "  unreferenced vertices: " in text
    read_back = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read_back["usable"] is True
    assert {fault["kind"]: fault["count"] for fault in read_back["faults"]} == kinds(report)
    assert len(read_back["components"]) == len(report.components)


def test_distance_from_the_origin_is_a_note() -> None:
    assert BALL.check().offset == pytest.approx(0, abs=1e-12)
    far = Mesh(V + np.array([1e5, 0, 0]), F).check()
    assert far.offset == pytest.approx(1e5 / far.diagonal)
    assert far.faults == ()
    assert far.notes[0].startswith("far from the origin")
