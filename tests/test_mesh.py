"""The laws of `Mesh` itself: what it accepts, its normal position and back, and the primitives' known figures."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashheat.errors import MeshError
from flashheat.mesh import Mesh, ellipsoid, grid, icosphere, torus

TRIANGLE = [[0, 0, 0], [1, 0, 0], [0, 1, 0]]


def enclosed_volume(mesh: Mesh) -> float:
    a, b, c = (mesh.verts[mesh.faces[:, corner]] for corner in range(3))
    return float(np.einsum("fi,fi->", np.cross(a, b), c)) / 6


@pytest.mark.parametrize("make", [list, np.float32, torch.tensor, lambda x: torch.tensor(x, requires_grad=True)])
def test_lists_arrays_and_tensors_give_the_same_mesh(make) -> None:
    values = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    verts = np.array(values, np.float32) if make is np.float32 else make(values)
    faces = torch.tensor([[0, 1, 2]], dtype=torch.int32) if isinstance(verts, torch.Tensor) else [[0, 1, 2]]
    mesh = Mesh(verts, faces)
    assert (mesh.verts.dtype, mesh.faces.dtype) == (np.float64, np.int64)
    assert mesh.verts.flags.c_contiguous
    assert (mesh.n_verts, mesh.n_faces, mesh.area) == (3, 1, 0.5)
    np.testing.assert_array_equal(mesh.verts, values)


@pytest.mark.parametrize(
    ("verts", "faces", "words"),
    [
        ([], [], "at least one vertex"),
        ([[0, 0], [1, 1]], [], r"shape \[V, 3\]"),
        ([["a", "b", "c"]], [], "real numbers"),
        ([[0, 0, 1j]], [], "real numbers"),
        ([[0, 0, 0], [np.nan, 0, 0]], [], "1 of 2 hold NaN or infinity, the first is vertex 1"),
        ([[0, 0, 0], [0, np.inf, 0]], [], "the first is vertex 1"),
        (TRIANGLE, [[0, 1, 2.0]], "must be integers; got float64"),
        (TRIANGLE, [[True, False, True]], "must be integers; got bool"),
        (TRIANGLE, [[0, 1]], r"shape \['F', 3\]"),
        (TRIANGLE, [0, 1, 2], r"shape \['F', 3\]"),
        (TRIANGLE, [[0, 1, 2], [1, 2, 3]], "0..2; 1 entries do not, the first is 3 in row 1"),
        (TRIANGLE, [[0, 1, -1]], "the first is -1 in row 0"),
        (TRIANGLE, np.array([[0, 1, 2**63]], np.uint64), "the first is 9223372036854775808"),
        (TRIANGLE, [[0, 1, 2**70]], "must be integers"),
    ],
)
def test_what_is_no_mesh_is_refused_in_one_line(verts, faces, words: str) -> None:
    with pytest.raises(MeshError, match=words) as refusal:
        Mesh(verts, faces)
    assert "\n" not in str(refusal.value)


def test_maps_must_fit_the_mesh() -> None:
    with pytest.raises(MeshError, match="vertex_map must point at vertices"):
        Mesh(TRIANGLE, [[0, 1, 2]], vertex_map=[0, 1, 3])
    with pytest.raises(MeshError, match="face_map must have one entry per face; got 2 for 1"):
        Mesh(TRIANGLE, [[0, 1, 2]], face_map=[0, 1])


def test_a_mesh_without_faces_is_a_point_cloud() -> None:
    cloud = Mesh(TRIANGLE, [])
    assert cloud.is_point_cloud
    assert cloud.faces.shape == (0, 3)
    assert cloud.area == 0.0
    assert not Mesh(TRIANGLE, [[0, 1, 2]]).is_point_cloud


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 999),
    size=st.sampled_from([1e-200, 1e-20, 1e-3, 1.0, 1e6, 1e200]),
    offset=st.sampled_from([0.0, 1.0, -1e8]),
)
def test_normalise_centres_scales_and_has_an_inverse(seed: int, size: float, offset: float) -> None:
    points = np.random.default_rng(seed).normal(size=(20, 3)) + offset
    mesh = Mesh(points * size, [[0, 1, 2]], vertex_map=np.arange(20), name="n")
    normal, way = mesh.normalise()
    assert np.linalg.norm(normal.verts.mean(axis=0)) <= 1e-15 * (1 + abs(offset))
    assert np.linalg.norm(normal.verts, axis=1).max() == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(way.undo(normal.verts) / size, points, rtol=0, atol=4e-16 * (4 + abs(offset)))
    np.testing.assert_array_equal(way.apply(mesh.verts), normal.verts)
    assert (normal.name, normal.n_faces) == ("n", 1)
    assert normal.vertex_map is not None


def test_normalise_is_the_same_wherever_and_however_large_the_mesh_is() -> None:
    ball = icosphere(2)
    for scale, shift in [(1e-6, 0.0), (1e3, 1e3), (1.0, 1e8)]:
        moved, _ = Mesh(ball.verts * scale + shift, ball.faces).normalise()
        np.testing.assert_allclose(moved.verts, ball.normalise()[0].verts, atol=4e-16 * (1 + shift / scale))


def test_the_mean_of_many_vertices_far_away_is_still_exact() -> None:
    points = np.random.default_rng(0).normal(size=(200_000, 3)) + 1e8
    normal, way = Mesh(points, []).normalise()
    assert np.abs((points - way.centre).mean(axis=0)).max() <= 3e-8  # two float64 spacings at 1e8
    assert np.abs(normal.verts.mean(axis=0)).max() <= 1e-8


def test_a_mesh_without_size_cannot_be_normalised() -> None:
    with pytest.raises(MeshError, match="all 3 vertices of dot coincide"):
        Mesh([[0.1, 0.2, 0.3]] * 3, [[0, 1, 2]], name="dot").normalise()


def test_scatter_takes_arrays_and_tensors_back_and_lets_gradients_through() -> None:
    mesh = Mesh(TRIANGLE, [[0, 1, 2]], vertex_map=[2, 0, 0, 1])
    np.testing.assert_array_equal(mesh.scatter(np.array([10, 11, 12])), [12, 10, 10, 11])
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    y = mesh.scatter(x)
    assert y.tolist() == [[5, 6], [1, 2], [1, 2], [3, 4]]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [2, 1, 1]
    with pytest.raises(MeshError, match="got 4 for 3"):
        mesh.scatter(np.zeros(4))
    plain = Mesh(TRIANGLE, [[0, 1, 2]])
    np.testing.assert_array_equal(plain.scatter(np.arange(3)), np.arange(3))


def test_the_area_of_a_huge_and_a_tiny_mesh_is_right() -> None:
    ball = icosphere(2)
    for scale in (1e-150, 1e-20, 1e30, 1e150):
        assert Mesh(ball.verts * scale, ball.faces).area == pytest.approx(ball.area * scale**2, rel=1e-12)


def test_icospheres_tend_to_the_sphere_at_second_order() -> None:
    balls = [icosphere(n) for n in range(5)]
    assert [ball.n_verts for ball in balls] == [12, 42, 162, 642, 2562]
    assert all(np.allclose(np.linalg.norm(ball.verts, axis=1), 1) for ball in balls)
    errors = [4 * np.pi - ball.area for ball in balls]
    rates = [coarse / fine for coarse, fine in pairwise(errors[1:])]
    assert rates == pytest.approx([4, 4, 4], rel=0.05)
    assert all(enclosed_volume(ball) > 0 for ball in balls)


@pytest.mark.parametrize(
    ("mesh", "euler", "area", "volume"),
    [
        (icosphere(4), 2, 4 * np.pi, 4 / 3 * np.pi),
        (ellipsoid([1, 2, 3], 4), 2, 48.8822, 8 * np.pi),
        (torus(96, 64), 0, 4 * np.pi**2 * 0.4, 2 * np.pi**2 * 0.16),
        (grid(7, 5), 1, 1.0, 0.0),
    ],
    ids=lambda value: value.name if isinstance(value, Mesh) else None,
)
def test_primitives_have_their_figures_and_no_fault(mesh: Mesh, euler: int, area: float, volume: float) -> None:
    report = mesh.check()
    assert report.faults == ()
    assert report.euler == euler
    assert mesh.area == pytest.approx(area, rel=5e-3)
    assert enclosed_volume(mesh) == pytest.approx(volume, rel=1e-2, abs=1e-12)


def test_the_grid_lies_row_by_row_and_faces_up() -> None:
    flat = grid(3, 2)
    np.testing.assert_array_equal(flat.verts[:, :2], [[0, 0], [0.5, 0], [1, 0], [0, 1], [0.5, 1], [1, 1]])
    a, b, c = (flat.verts[flat.faces[:, corner]] for corner in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()


@pytest.mark.parametrize(
    "make", [lambda: icosphere(-1), lambda: grid(1, 5), lambda: torus(2, 9), lambda: ellipsoid([1, 2, 0])]
)
def test_impossible_primitives_are_refused(make) -> None:
    with pytest.raises(MeshError, match="needs"):
        make()
