"""Operators of point clouds: the area and the spectrum of the surface that the points lie on."""

import numpy as np
import pytest
import torch

from flashheat.errors import MeshError
from flashheat.mesh import Mesh, icosphere
from flashheat.operators import compute_operators

F64 = torch.float64
NO_FACES = np.zeros((0, 3), int)


def sphere_points(n: int) -> np.ndarray:
    points = np.random.default_rng(0).standard_normal((n, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_a_sampled_sphere_wherever_it_lies() -> None:
    points = sphere_points(4000)
    here = compute_operators(Mesh(points, NO_FACES), 16, dtype=F64)
    there = compute_operators(Mesh(points + np.array([100.0, -50.0, 20.0]), NO_FACES), 16, dtype=F64)
    for operators in (here, there):
        assert operators.mass.sum().item() == pytest.approx(4 * np.pi, rel=0.01)
        np.testing.assert_allclose(operators.evals[1:4], [2, 2, 2], rtol=0.06)
        assert operators.residuals.max() < 1e-9
    torch.testing.assert_close(there.evals, here.evals, rtol=1e-6, atol=1e-9)


def test_the_points_of_a_good_mesh_give_nearly_its_operators() -> None:
    mesh = icosphere(4)
    cloud, surface = (compute_operators(Mesh(mesh.verts, f), 9, dtype=F64) for f in (NO_FACES, mesh.faces))
    torch.testing.assert_close(cloud.evals, surface.evals, rtol=0.01, atol=1e-9)
    assert (cloud.frames[:, 2] * surface.frames[:, 2]).sum(dim=1).min() > 0.99  # outward
    assert cloud.faces.shape == (0, 3)
    assert cloud.edges.shape == (0, 2)


def test_a_regular_grid_whose_squares_are_all_ties() -> None:
    x, y = np.meshgrid(np.linspace(0, 1, 24), np.linspace(0, 1, 24))
    points = np.stack([x, y, 0 * x], axis=-1).reshape(-1, 3)
    operators = compute_operators(Mesh(points, NO_FACES), 4, dtype=F64)
    assert operators.mass.sum().item() == pytest.approx(1, rel=0.01)
    np.testing.assert_allclose(operators.evals[1:3], [np.pi**2] * 2, rtol=0.03)
    slope = operators.gradX.to_scipy() @ points[:, 0], operators.gradY.to_scipy() @ points[:, 0]
    np.testing.assert_allclose(np.hypot(*slope), 1, atol=1e-10)


def test_copies_of_points_change_little() -> None:
    points = sphere_points(1500)
    operators = compute_operators(Mesh(np.concatenate([points, points[:300], points[:50]]), NO_FACES), 9, dtype=F64)
    assert torch.isfinite(operators.gradX.values).all()
    assert (operators.mass > 0).all()
    assert operators.mass.sum().item() == pytest.approx(4 * np.pi, rel=0.03)
    assert operators.n_components == 1


def test_a_handful_of_points() -> None:
    operators = compute_operators(Mesh(np.eye(4, 3), NO_FACES), 8, dtype=F64)
    assert operators.k_valid == 4
    assert torch.isfinite(operators.evecs).all()


LINE = np.outer(np.arange(40.0), [1, 0, 0])
NO_SURFACE = {"one place": 0 * LINE, "a line": LINE, "two lines": np.concatenate([LINE, LINE + np.array([0, 1e3, 0])])}


@pytest.mark.parametrize("name", NO_SURFACE)
def test_points_without_a_surface_are_refused(name: str) -> None:
    with pytest.raises(MeshError, match="point cloud"):
        compute_operators(Mesh(NO_SURFACE[name], NO_FACES))
