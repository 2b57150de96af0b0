"""The exact flow past ellipsoids, held to the laws it must obey."""

import numpy as np
import pytest

from flashheat.data.potential_flow import ellipsoid_pressure, lamb_alphas, load_flow, random_body, random_rotation
from flashheat.errors import FlashheatError
from flashheat.mesh import icosphere

AXES = [(1.0, 1.0, 1.0), (1.0, 2.0, 4.0), (0.3, 1.1, 1.0), (5.0, 1.0, 1.0)]


def test_sphere_has_the_textbook_pressure() -> None:
    points = icosphere(3).verts
    stream = np.array([2.0, -1.0, 0.5])
    cosine = points @ stream / np.linalg.norm(stream)
    np.testing.assert_allclose(ellipsoid_pressure(points, [1, 1, 1], stream), 1 - 2.25 * (1 - cosine**2), atol=1e-12)


@pytest.mark.parametrize("axes", AXES)
def test_alphas_are_the_integral_and_sum_to_two(axes: tuple[float, ...]) -> None:
    from scipy.integrate import quad

    squares = np.square(axes)
    volume = np.prod(axes)
    integrals = [
        volume * quad(lambda l, s=s: 1 / ((s + l) * np.sqrt(np.prod(squares + l))), 0, np.inf)[0] for s in squares
    ]
    np.testing.assert_allclose(lamb_alphas(axes), integrals, rtol=1e-7)
    np.testing.assert_allclose(lamb_alphas(axes).sum(), 2, rtol=1e-12)


@pytest.mark.parametrize("axes", AXES)
def test_pressure_exerts_no_force(axes: tuple[float, ...]) -> None:
    """d'Alembert: the integral of Cp n vanishes, to the accuracy of a one-point rule over small triangles."""
    sphere = icosphere(5)
    corners = (sphere.verts * axes)[sphere.faces]
    vectors = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]) / 2
    middles = sphere.verts[sphere.faces].mean(axis=1)
    middles = middles / np.linalg.norm(middles, axis=1, keepdims=True) * axes
    pressure = ellipsoid_pressure(middles, axes, [1.0, 2.0, -0.5])
    assert np.abs(pressure @ vectors).max() < 1e-3 * np.abs(vectors).sum()
    assert np.abs(np.abs(pressure) @ np.abs(vectors)).max() > 0.1 * np.abs(vectors).sum() / 3


def test_potential_has_no_flow_through_the_surface() -> None:
    """The exterior potential with Lamb's alpha(lambda) must cancel the normal stream: checked by differences."""
    from scipy.special import elliprd

    axes, U = np.array([1.0, 1.7, 2.6]), np.array([0.3, -1.0, 0.8])
    alphas = lamb_alphas(axes)

    def potential(point: np.ndarray) -> float:
        from scipy.optimize import brentq

        size = np.square(axes)
        lam = brentq(lambda l: (point**2 / (size + l)).sum() - 1, -0.5, 50.0, xtol=1e-15)
        a, b, c = size + lam
        outer = 2 / 3 * np.prod(axes) * np.array([elliprd(b, c, a), elliprd(a, c, b), elliprd(a, b, c)])
        return float((U * point * (1 + outer / (2 - alphas))).sum())

    points = icosphere(1).verts * axes
    step = 1e-5
    velocity = np.array(
        [[(potential(p + step * e) - potential(p - step * e)) / (2 * step) for e in np.eye(3)] for p in points]
    )
    normals = points / axes**2
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    assert np.abs((velocity * normals).sum(axis=1)).max() < 1e-6
    exact = ellipsoid_pressure(points, axes, U)
    np.testing.assert_allclose(1 - (velocity**2).sum(axis=1) / (U @ U), exact, atol=1e-6)


def test_needle_along_the_stream_hardly_disturbs_it_and_across_it_is_a_cylinder() -> None:
    axes = np.array([400.0, 1.0, 1.0])
    waist = np.array([[0.0, np.cos(t), np.sin(t)] for t in np.linspace(0, 6, 20)])
    np.testing.assert_allclose(ellipsoid_pressure(waist, axes, [1, 0, 0]), 0, atol=2e-4)
    across = ellipsoid_pressure(waist, axes, [0, 1, 0])
    np.testing.assert_allclose(across, 1 - 4 * (1 - waist[:, 1] ** 2), atol=2e-3)


def test_thin_disc_edge_on_hardly_disturbs_the_stream() -> None:
    face = np.array([[0.3, 0.4, 1e-4 * np.sqrt(0.75)]])
    np.testing.assert_allclose(ellipsoid_pressure(face, [1, 1, 1e-4], [1, 0, 0]), 0, atol=1e-3)
    broadside = ellipsoid_pressure(face, [1, 1, 1e-4], [0, 0, 1])
    np.testing.assert_allclose(broadside, 1 - (2 / np.pi) ** 2 * 0.25 / 0.75, rtol=1e-3)


def test_pressure_does_not_depend_on_size_or_speed() -> None:
    points, axes, U = icosphere(2).verts * [1, 2, 3], np.array([1.0, 2, 3]), np.array([1.0, 1, 0])
    expected = ellipsoid_pressure(points, axes, U)
    np.testing.assert_allclose(ellipsoid_pressure(points * 7, axes * 7, U * 0.1), expected, atol=1e-12)


def test_bodies_are_closed_outward_and_reproducible() -> None:
    body = random_body(np.random.default_rng(3), "body")
    verts, faces = body.mesh.verts, body.mesh.faces
    assert len(faces) == 2 * len(verts) - 4  # closed, genus 0, every vertex used
    volume = np.einsum("fi,fi->", verts[faces[:, 0]], np.cross(verts[faces[:, 1]], verts[faces[:, 2]]))
    assert volume > 0
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    assert (np.unique(edges, axis=0, return_counts=True)[1] == 2).all()
    assert body.target.max() <= 1 + 1e-12
    again = random_body(np.random.default_rng(3), "body")
    assert (again.mesh.verts == verts).all()
    assert (again.target == body.target).all()


def test_turning_body_and_stream_together_changes_nothing() -> None:
    """Stagnation (Cp near 1) lies where the normal meets the stream that the example names."""
    for seed in range(5):
        body = random_body(np.random.default_rng(seed), "body")
        front = body.mesh.verts[body.target.argmax()]
        a, b, c = (body.mesh.verts[body.mesh.faces[:, i]] for i in range(3))
        normals = np.cross(b - a, c - a)
        touching = (body.mesh.verts[body.mesh.faces] == front).all(axis=2).any(axis=1)
        normal = normals[touching].sum(axis=0)
        assert abs(normal @ body.stream) > 0.8 * np.linalg.norm(normal)


def test_growing_the_set_keeps_its_bodies_and_seeds_differ() -> None:
    small, large = load_flow(2, 1, seed=5), load_flow(3, 2, seed=5)
    assert (small.train[1].target == large.train[1].target).all()
    assert (small.test[0].target == large.test[0].target).all()
    assert len(load_flow(2, 1, seed=6).train[0].target) != len(small.train[0].target)
    names = [e.mesh.name for e in large.train + large.test]
    assert len(set(names)) == 5


def test_rotations_are_rotations_and_spread_evenly() -> None:
    rng = np.random.default_rng(0)
    rotations = np.array([random_rotation(rng) for _ in range(4000)])
    np.testing.assert_allclose(
        rotations @ rotations.transpose(0, 2, 1), np.broadcast_to(np.eye(3), rotations.shape), atol=1e-12
    )
    assert (np.linalg.det(rotations) > 0).all()
    assert np.abs(rotations.mean(axis=0)).max() < 0.05
    assert np.abs((rotations**2).mean(axis=0) - 1 / 3).max() < 0.03


@pytest.mark.parametrize(("axes", "stream"), [((1, 0, 1), (1, 0, 0)), ((1, 1, 1), (0, 0, 0))])
def test_impossible_bodies_are_refused(axes: tuple[float, ...], stream: tuple[float, ...]) -> None:
    with pytest.raises(FlashheatError, match="half axes"):
        ellipsoid_pressure(np.ones((1, 3)), axes, stream)


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(FlashheatError, match="at least one body"):
        load_flow(0, 1, 0)
