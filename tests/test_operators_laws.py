"""The laws that native operators of clean meshes must obey (DESIGN.md, section 1), in float64."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from flashheat.mesh import Mesh, ellipsoid, grid, icosphere, torus
from flashheat.operators import Operators, compute_operators, hks

F64 = torch.float64


def heat(operators: Operators, time: float) -> torch.Tensor:
    """The diagonal of the heat kernel: free of the eigenvectors' signs and rotations."""
    return hks(operators.evals, operators.evecs, torch.tensor([time], dtype=F64))[:, 0]


def gradient_norm(operators: Operators, values: np.ndarray) -> np.ndarray:
    return np.hypot(operators.gradX.to_scipy() @ values, operators.gradY.to_scipy() @ values)


@pytest.fixture(scope="module")
def body() -> Mesh:
    return ellipsoid((1.0, 0.8, 0.5), 3)


@pytest.fixture(scope="module")
def of_body(body: Mesh) -> Operators:
    return compute_operators(body, 40, dtype=F64)


def sphere_error(subdivisions: int) -> np.ndarray:
    """The worst relative error of each multiplet l = 1..4 against l (l + 1)."""
    evals = compute_operators(icosphere(subdivisions), 25, dtype=F64).evals.numpy()
    exact = [value for degree in range(5) for value in [degree * (degree + 1.0)] * (2 * degree + 1)]
    error = np.abs(evals - exact)[1:] / exact[1:]
    return np.array([error[degree**2 - 1 : (degree + 1) ** 2 - 1].max() for degree in range(1, 5)])


def test_sphere_eigenvalues_tend_to_the_exact_ones_at_second_order() -> None:
    coarse, fine = sphere_error(3), sphere_error(4)
    assert (fine < 0.01).all()
    assert (np.log2(coarse / fine) > 1.8).all()


def test_torus_and_grid_have_the_right_area_and_one_constant() -> None:
    for mesh, area in ((torus(96, 48), 4 * np.pi**2 * 0.4), (grid(9, 7), 1.0)):
        operators = compute_operators(mesh, 8, dtype=F64)
        assert operators.mass.sum().item() == pytest.approx(area, rel=0.01)
        assert operators.evals[0] == 0
        assert operators.evals[1] > 1e-2


def test_square_eigenvalues_are_those_of_the_neumann_problem() -> None:
    evals = compute_operators(grid(41, 41), 8, dtype=F64).evals.numpy()
    exact = np.pi**2 * np.array([0, 1, 1, 2, 4, 4, 5, 5])
    np.testing.assert_allclose(evals, exact, rtol=5e-3, atol=1e-9)


def test_the_weak_laplacian_is_symmetric_semi_definite_with_rows_that_sum_to_zero(of_body: Operators) -> None:
    L = of_body.L.to_scipy()
    assert abs(L - L.T).max() < 1e-13
    assert np.abs(L.sum(axis=1)).max() < 1e-12
    assert np.linalg.eigvalsh(L.toarray()).min() > -1e-12


def test_cotangents_of_one_right_triangle() -> None:
    operators = compute_operators(Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]]), 3, dtype=F64)
    expected = [[1, -0.5, -0.5], [-0.5, 0.5, 0], [-0.5, 0, 0.5]]
    np.testing.assert_allclose(operators.L.to_scipy().toarray(), expected, atol=1e-14)
    np.testing.assert_allclose(operators.mass, [1 / 6] * 3)


def test_eigenpairs_are_mass_orthonormal_and_solve_the_problem(of_body: Operators) -> None:
    gram = of_body.evecs.T @ (of_body.mass[:, None] * of_body.evecs)
    assert (gram - torch.eye(40, dtype=F64)).abs().max() < 1e-12
    right = (of_body.mass[:, None] * of_body.evecs * of_body.evals).numpy()
    assert np.abs(of_body.L.to_scipy() @ of_body.evecs.numpy() - right).max() < 1e-9
    assert of_body.residuals.max() < 1e-9
    assert (of_body.evals.diff() >= 0).all()


def test_constants_lie_in_the_span_of_the_basis(of_body: Operators) -> None:
    ones = torch.ones(of_body.n_verts, dtype=F64)
    projected = of_body.evecs @ (of_body.evecs.T @ (of_body.mass * ones))
    assert (projected - 1).abs().max() < 1e-12


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_scaling_a_mesh(body: Mesh, of_body: Operators, scale: float) -> None:
    scaled = compute_operators(Mesh(body.verts * scale, body.faces), 40, dtype=F64)
    torch.testing.assert_close(scaled.mass / scale**2, of_body.mass, rtol=1e-12, atol=0)
    torch.testing.assert_close(scaled.evals * scale**2, of_body.evals, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(heat(scaled, 0.05 * scale**2) * scale**2, heat(of_body, 0.05), rtol=1e-8, atol=0)
    assert abs(scaled.L.to_scipy() - of_body.L.to_scipy()).max() < 1e-11
    for name in ("gradX", "gradY"):
        difference = getattr(scaled, name).to_scipy() * scale - getattr(of_body, name).to_scipy()
        assert abs(difference).max() < 1e-9


def test_moving_a_mesh_far_away_changes_only_what_rounding_of_its_coordinates_does(body: Mesh) -> None:
    near = Mesh((body.verts + 1e8) - 1e8, body.faces)
    far = compute_operators(Mesh(near.verts + 1e8, body.faces), 20, dtype=F64)
    torch.testing.assert_close(far.evals, compute_operators(near, 20, dtype=F64).evals, rtol=1e-9, atol=1e-9)


def test_turning_moving_and_renumbering_a_mesh(body: Mesh, of_body: Operators) -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    order = rng.permutation(body.n_verts)
    moved = Mesh((body.verts @ turn + [3.0, -2.0, 1.0])[order], np.argsort(order)[body.faces])
    other = compute_operators(moved, 40, dtype=F64)
    torch.testing.assert_close(other.mass, of_body.mass[order], rtol=1e-11, atol=0)
    torch.testing.assert_close(other.evals, of_body.evals, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(heat(other, 0.1), heat(of_body, 0.1)[order], rtol=1e-8, atol=0)
    values = np.sin(3 * body.verts[:, 0]) + body.verts[:, 1] * body.verts[:, 2]
    np.testing.assert_allclose(gradient_norm(other, values[order]), gradient_norm(of_body, values)[order], atol=1e-9)


@pytest.mark.parametrize("stretch", [1.0, 1e-2, 1e2], ids=["square", "flat", "long"])
def test_gradients_of_linear_functions_are_exact_on_flat_patches(stretch: float) -> None:
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    patch = grid(8, 6)
    mesh = Mesh((patch.verts * [1.0, stretch, 1.0]) @ turn, patch.faces)
    operators = compute_operators(mesh, 4, dtype=F64)
    slope = np.array([0.3, -1.2, 0.7])
    values = mesh.verts @ slope + 5.0
    tangential = operators.frames[:, :2].numpy() @ slope
    np.testing.assert_allclose(operators.gradX.to_scipy() @ values, tangential[:, 0], atol=1e-10)
    np.testing.assert_allclose(operators.gradY.to_scipy() @ values, tangential[:, 1], atol=1e-10)


def test_gradients_of_constants_vanish_and_frames_are_right_handed(of_body: Operators) -> None:
    assert gradient_norm(of_body, np.ones(of_body.n_verts)).max() < 1e-11
    X, Y, normal = of_body.frames.unbind(dim=1)
    assert (of_body.frames @ of_body.frames.transpose(1, 2) - torch.eye(3, dtype=F64)).abs().max() < 1e-14
    assert (torch.linalg.cross(X, Y) - normal).abs().max() < 1e-14


def test_given_frames_and_normals_are_used(body: Mesh, of_body: Operators) -> None:
    from_normals = compute_operators(body, 4, normals=3 * of_body.frames[:, 2], dtype=F64)
    torch.testing.assert_close(from_normals.frames, of_body.frames, rtol=0, atol=1e-14)
    turned = of_body.frames[:, [1, 0, 2]] * torch.tensor([1.0, -1.0, 1.0], dtype=F64)[:, None]
    from_frames = compute_operators(body, 4, frames=turned, dtype=F64)
    torch.testing.assert_close(from_frames.gradX.values, of_body.gradY.values, rtol=1e-9, atol=1e-9)


def test_the_same_mesh_gives_the_same_bits(body: Mesh, of_body: Operators) -> None:
    again = compute_operators(body, 40, dtype=F64)
    for name in ("mass", "evals", "evecs"):
        torch.testing.assert_close(getattr(again, name), getattr(of_body, name), rtol=1e-12, atol=1e-12)


_SIGNS = """
import torch
from flashheat import compute_operators
from flashheat.mesh import ellipsoid
operators = compute_operators(ellipsoid((1.0, 0.8, 0.5), 3), 32, dtype=torch.float64)
print((operators.evecs[::7] * 1e6).round().long().tolist())
"""


def test_signs_on_a_symmetric_mesh_do_not_depend_on_the_number_of_threads(of_body: Operators) -> None:
    """Entries of both signs are largest there, but for rounding, and BLAS rounds by its number of threads."""
    command = [sys.executable, "-c", _SIGNS]
    one, two = (
        subprocess.run(command, env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), n),
                       capture_output=True, text=True, check=True).stdout
        for n in ("1", "2")
    )  # fmt: skip
    np.testing.assert_allclose(json.loads(one), json.loads(two), atol=1)
    size = of_body.evecs.abs()
    first = (size >= (1 - 1e-6) * size.amax(dim=0)).int().argmax(dim=0, keepdim=True)
    assert (of_body.evecs.gather(0, first) > 0).all()


def test_edges_are_unique_and_sorted(of_body: Operators, body: Mesh) -> None:
    sides = {(int(a), int(b)) for face in body.faces for a, b in zip(face, np.roll(face, 1), strict=True)}
    assert of_body.edges.tolist() == sorted([a, b] for a, b in sides if a < b)
