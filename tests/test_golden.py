"""convention="diffusion_net" against what the original computed, within the limits of the golden files."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from flashheat.mesh import Mesh
from flashheat.operators import CSR, Operators, compute_operators, hks_autoscale

NAMES = ("bunny_small", "decimated_knight", "bunny_small_pointcloud")
Golden = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Golden, Operators]:
    golden = dict(np.load(shared_data / "golden" / f"{request.param}.npz"))
    mesh = Mesh(golden["verts"], golden["faces"])
    operators = compute_operators(mesh, 128, convention="diffusion_net", frames=golden["frames"], dtype=torch.float64)
    return golden, operators


def matrix(golden: Golden, name: str) -> scipy.sparse.csr_array:
    V = len(golden["verts"])
    return scipy.sparse.coo_array((golden[f"{name}_v"].astype(float), golden[f"{name}_ij"]), shape=(V, V)).tocsr()


def assert_matrix(computed: CSR, golden: Golden, name: str) -> None:
    expected, ours = matrix(golden, name), computed.to_scipy()
    assert abs(ours - expected).max() <= 1e-5 * abs(expected).max()
    assert ours.nnz == expected.nnz


def test_mass_and_laplacian(case: tuple[Golden, Operators]) -> None:
    golden, operators = case
    assert np.abs(operators.mass.numpy() - golden["mass"]).max() <= 1e-5 * golden["mass"].max()
    assert_matrix(operators.L, golden, "L")


def test_eigenvalues(case: tuple[Golden, Operators]) -> None:
    golden, operators = case
    np.testing.assert_allclose(operators.evals[1:], golden["evals"][1:], rtol=1e-5)
    np.testing.assert_allclose(operators.evals[0], golden["evals"][0], rtol=1e-3)  # the shift, not 0


def test_eigenvectors_span_the_same_heat_kernel(case: tuple[Golden, Operators]) -> None:
    golden, operators = case
    ours, theirs = (
        evecs * np.exp(-0.01 * evals) @ evecs[:50].T
        for evals, evecs in ((operators.evals.numpy(), operators.evecs.numpy()), (golden["evals"], golden["evecs"]))
    )
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_hks(case: tuple[Golden, Operators]) -> None:
    golden, operators = case
    assert np.abs(hks_autoscale(operators, 16).numpy() - golden["hks16"]).max() <= 1e-4


def test_gradients_with_the_stored_frames(case: tuple[Golden, Operators]) -> None:
    golden, operators = case
    assert_matrix(operators.gradX, golden, "gradX")
    assert_matrix(operators.gradY, golden, "gradY")


@pytest.mark.parametrize("name", NAMES)
def test_our_own_frames_are_those_of_the_original(shared_data: Path, name: str) -> None:
    golden = dict(np.load(shared_data / "golden" / f"{name}.npz"))
    mesh = Mesh(golden["verts"], golden["faces"])
    operators = compute_operators(mesh, 4, convention="diffusion_net", dtype=torch.float64)
    np.testing.assert_allclose(operators.frames, golden["frames"], atol=2e-5)


@pytest.mark.parametrize("name", NAMES[:2])
def test_on_clean_meshes_native_differs_by_the_shift_only(shared_data: Path, name: str) -> None:
    golden = dict(np.load(shared_data / "golden" / f"{name}.npz"))
    operators = compute_operators(Mesh(golden["verts"], golden["faces"]), 128, dtype=torch.float64)
    assert_matrix(operators.L, golden, "L")
    assert np.abs(operators.mass.numpy() - golden["mass"]).max() <= 1e-5 * golden["mass"].max()
    np.testing.assert_allclose(operators.evals[1:], golden["evals"][1:], rtol=1e-5)
    assert operators.evals[0] == 0
