"""Operators of meshes as they come: zero area, several components, not manifold, slivers, too few vertices."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from flashheat.errors import FlashheatError, MeshError, MissingExtraError
from flashheat.mesh import Mesh, ellipsoid, grid, icosphere
from flashheat.operators import CSR, Operators, compute_operators, compute_operators_of_many, spectrum
from flashheat.operators.laplacian import manifold
from flashheat.operators.shift_invert import superlu
from flashheat.operators.spectrum import lowest_eigenpairs

F64 = torch.float64
BODY = ellipsoid((1.0, 0.8, 0.5), 2)


def joined(*meshes: Mesh) -> Mesh:
    starts = np.cumsum([0] + [mesh.n_verts for mesh in meshes])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(np.concatenate([mesh.verts for mesh in meshes]), np.concatenate(faces))


def assert_sound(operators: Operators, convention: str = "native") -> None:
    """Finite, mass-orthonormal over the real columns, zeros beyond, one zero eigenvalue a component."""
    k = int(operators.k_valid)
    for matrix in (operators.L, operators.gradX, operators.gradY):
        assert torch.isfinite(matrix.values).all()
    gram = operators.evecs.T @ (operators.mass[:, None] * operators.evecs)
    expected = torch.diag((torch.arange(operators.k_eig) < k).to(F64))
    assert (gram - expected).abs().max() < 1e-10
    assert (operators.evals[k:] == 0).all()
    assert (operators.evals[:k].diff() >= 0).all()
    if convention == "native":
        assert int((operators.evals[:k] == 0).sum()) == min(k, int(operators.n_components))
    assert operators.residuals.max() < 1e-6
    nowhere = operators.mass == 0
    assert (operators.evecs[nowhere] == 0).all()
    assert torch.isfinite(operators.frames).all()


def test_vertices_without_area_leave_and_the_others_do_not_notice() -> None:
    extra = np.array([[9.0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 2, 2]])  # one unused, three on a line
    verts = np.concatenate([extra, BODY.verts])
    mesh = Mesh(verts, np.concatenate([BODY.faces + 4, [[1, 2, 3]], [[5, 5, 6]]]))
    operators, clean = compute_operators(mesh, 20, dtype=F64), compute_operators(BODY, 20, dtype=F64)
    assert (operators.mass[:4] == 0).all()
    assert (operators.evecs[:4] == 0).all()
    for matrix in (operators.gradX, operators.gradY, operators.L):
        assert np.abs(matrix.to_scipy()[:4]).max() == 0
    torch.testing.assert_close(operators.mass[4:], clean.mass, rtol=1e-12, atol=0)
    torch.testing.assert_close(operators.evals, clean.evals, rtol=1e-9, atol=1e-9)
    assert abs(operators.gradX.to_scipy()[4:, 4:] - clean.gradX.to_scipy()).max() < 1e-11
    assert operators.faces.shape == (322, 3)
    assert_sound(operators)


@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
def test_rna_with_isolated_vertices(shared_data: Path, convention: str) -> None:
    surface = np.load(shared_data / "rna" / "npz_train" / "3J9Y_B.npz")
    operators = compute_operators(Mesh(surface["vertices"], surface["faces"]), 32, convention, dtype=F64)
    unused = np.setdiff1d(np.arange(len(surface["vertices"])), surface["faces"])
    assert len(unused) > 100
    assert (operators.mass[unused] == 0).all()
    assert (operators.mass == 0).sum() >= len(unused)
    assert (operators.evecs[unused] == 0).all()
    assert operators.k_valid == 32
    assert operators.residuals.max() < 1e-6


def test_equal_components_have_equal_eigenvalues_as_often_as_they_occur() -> None:
    sphere = icosphere(3)
    copies = joined(*[Mesh(sphere.verts + np.array([3.0 * i, 0, 0]), sphere.faces) for i in range(12)])
    operators = compute_operators(copies, 12 * 9, dtype=F64)
    alone = compute_operators(sphere, 9, dtype=F64)
    torch.testing.assert_close(operators.evals, alone.evals.repeat_interleave(12).sort().values, rtol=1e-9, atol=1e-9)
    assert operators.n_components == 12
    assert_sound(operators)


def test_no_eigenvalue_is_missed(shared_data: Path) -> None:
    sphere = Mesh.read(shared_data / "meshes" / "clean" / "potpourri3d_bunny_small.ply")
    operators = compute_operators(sphere, 300, dtype=F64)
    assert operators.solver == ("lanczos-cholmod",)
    root = operators.mass.sqrt().numpy()
    everything = np.linalg.eigvalsh(operators.L.to_scipy().toarray() / root / root[:, None])
    np.testing.assert_allclose(operators.evals[1:], everything[1:300], rtol=1e-9)


def test_a_small_far_component_gets_its_constant_and_few_modes() -> None:
    mesh = joined(BODY, Mesh(1e-4 * icosphere(1).verts + 50.0, icosphere(1).faces))
    operators = compute_operators(mesh, 30, dtype=F64)
    assert_sound(operators)
    there = operators.evecs[BODY.n_verts :].abs().amax(dim=0) > 0
    assert int(there.sum()) == 1


def test_a_component_with_more_low_modes_than_its_area_promises() -> None:
    sphere, strip = icosphere(2), grid(120, 2)
    strip = Mesh(strip.verts * [50.0, 0.02, 1.0] + [2.0, 0, 0], strip.faces)
    operators = compute_operators(joined(sphere, strip), 30, dtype=F64)
    alone = [compute_operators(mesh, 30, dtype=F64).evals for mesh in (sphere, strip)]
    torch.testing.assert_close(operators.evals, torch.cat(alone).sort().values[:30], rtol=1e-8, atol=1e-9)


def test_more_components_than_eigenpairs_still_hold_the_constant() -> None:
    flakes = [Mesh((1 + 0.1 * i) * grid(2, 2).verts + [5.0 * i, 0, 0], grid(2, 2).faces) for i in range(9)]
    operators = compute_operators(joined(*flakes), 5, dtype=F64)
    assert operators.solver == ("constants",)
    assert operators.n_components == 9
    ones = torch.ones(operators.n_verts, dtype=F64)
    assert (operators.evecs @ (operators.evecs.T @ (operators.mass * ones)) - 1).abs().max() < 1e-12
    assert_sound(operators)


def test_fewer_vertices_than_eigenpairs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flashheat"):
        operators = compute_operators(Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [7, 7, 7]], [[0, 1, 2]]), 6, dtype=F64)
    assert operators.k_valid == 3
    assert_sound(operators)
    assert sum("3 of 6 eigenpairs" in message for message in caplog.messages) == 1
    values = torch.tensor([1.0, 2.0, -4.0, 0.0], dtype=F64)
    torch.testing.assert_close(operators.evecs @ (operators.evecs.T @ (operators.mass * values)), values)


@pytest.mark.parametrize(
    "name",
    [
        "nonmanifold_edge_fin.off", "nonmanifold_vertex_bowtie.off", "nonorientable_moebius.off", "planar_all_z0.off",
        "zero_area_collinear_sliver.off", "coincident_edge_zero_length.off", "needle_triangles.off", "ngon_100.obj",
        "high_valence_fan2000.off", "hole_open_hemisphere.off", "tiny_far_component.off", "scale_1e-6.off",
        "huge_coords_1e8_offset.off", "multi_component_3.off", "isolated_vertices.off", "all_flipped.off",
    ],
)  # fmt: skip
def test_broken_meshes_give_sound_operators(shared_data: Path, name: str) -> None:
    assert_sound(compute_operators(Mesh.read(shared_data / "meshes" / "broken" / name), 64, dtype=F64))


@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
def test_soups_of_random_faces_on_few_places_are_sound(convention: str) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        V, F = rng.integers(4, 60), rng.integers(3, 120)
        verts = np.round(2 * rng.standard_normal((V, 3))) / 2
        verts[:, 2] *= seed % 2
        k_eig, faces = int(rng.integers(1, 40)), rng.integers(0, V, size=(F, 3))
        operators = compute_operators(Mesh(verts, faces), k_eig, convention, dtype=F64)
        assert_sound(operators, convention)


def test_the_top_of_the_spectrum_does_not_mix_with_the_constant() -> None:
    L = CSR.from_scipy(scipy.sparse.csr_array([[1.0, -1.0], [-1.0, 1.0]]))  # its largest eigenvalue is its norm
    one = torch.zeros(2, dtype=torch.int64)
    found = lowest_eigenpairs(L, torch.ones(2, dtype=F64), torch.eye(2, 3, dtype=F64), one, one, 2, "native")
    np.testing.assert_allclose(found.evals[0], [0, 2])
    np.testing.assert_allclose(found.evecs.abs(), np.sqrt(0.5))


def test_coincident_vertices_along_slivers(shared_data: Path) -> None:
    assert_sound(compute_operators(Mesh.read(shared_data / "meshes" / "broken_public" / "capsule.obj"), 64, dtype=F64))


def test_residuals_above_the_limit_are_a_few_last_bits_and_the_warning_says_so(
    shared_data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectrum, "LARGEST_RESIDUAL", 1e-7)
    surface = np.load(shared_data / "rna" / "npz_train" / "1Q82_B.npz")  # has a sliver vertex of 1e-11 of the area
    with caplog.at_level(logging.WARNING, logger="flashheat"):
        operators = compute_operators(Mesh(surface["vertices"], surface["faces"]), 128, dtype=F64)
    assert 1e-7 < operators.residuals.max() < 1e-5
    (message,) = caplog.messages
    assert f"residuals up to {operators.residuals.max():.1e}" in message
    assert "limit of 1e-07 and accepted: beside its slivers rounding alone may leave" in message


@pytest.mark.parametrize("name", ["teapot.stl", "octagonal_pocket.stl"])
def test_the_order_of_a_mesh_that_is_not_manifold_plays_no_part(shared_data: Path, name: str) -> None:
    mesh, rng = Mesh.read(shared_data / "meshes" / "broken_public" / name), np.random.default_rng(0)
    order = rng.permutation(mesh.n_verts)
    faces = np.argsort(order)[mesh.faces][rng.permutation(mesh.n_faces)]
    found, other = (compute_operators(of, 64, dtype=F64) for of in (mesh, Mesh(mesh.verts[order], faces)))
    moved = (found.evals - other.evals).abs() / found.evals.clamp_min(4 * np.pi / float(found.mass.sum()))
    assert moved.max() < 1e-9


BROKEN = {
    "finite": (np.full((42, 3), np.nan), icosphere(1).faces),
    r"numbers \[V, 3\].*\[42, 2\]": (icosphere(1).verts[:, :2], icosphere(1).faces),
    "V > 0": (np.zeros((0, 3)), icosphere(1).faces),
    r"whole numbers \[F, 3\].*\[3, 4\]": (icosphere(1).verts, np.zeros((3, 4), int)),
    "whole numbers .*float64": (icosphere(1).verts, 1.0 * icosphere(1).faces),
    "the mesh's vertices, 0 to 41: got 42": (icosphere(1).verts, icosphere(1).faces + 1),
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_no_mesh_is_told_in_one_line_and_which_of_many_it_was(message: str) -> None:
    verts, faces = BROKEN[message]
    broken = SimpleNamespace(verts=verts, faces=faces)
    with pytest.raises(MeshError, match=f"(?s)^`?(verts|faces).*{message}"):
        compute_operators(broken, 8)
    with pytest.raises(MeshError, match=f"(?s)^mesh 2: .*{message}"):
        compute_operators_of_many(iter([BODY, Mesh(BODY.verts, np.zeros((0, 3), int)), broken]), 8)
    with pytest.raises(MeshError, match=r"^mesh 1: a mesh must have a face with area"):
        compute_operators_of_many([BODY, SimpleNamespace(verts=0 * BODY.verts, faces=BODY.faces)], 8)


def test_options_that_are_none() -> None:
    with pytest.raises(MeshError, match=r"`normals` must be finite: got \[nan, 0.0, 0.0\] at vertex 3"):
        compute_operators(BODY, 8, normals=np.where(np.arange(3 * BODY.n_verts) == 9, np.nan, 0.0).reshape(-1, 3))
    with pytest.raises(FlashheatError, match="`meshes` must be several"):
        compute_operators_of_many(BODY, 8)  # type: ignore[arg-type]
    with pytest.raises(FlashheatError, match=r"`dtype` must be one of torch\.float64"):
        compute_operators(BODY, 8, dtype=torch.int32)
    with pytest.raises(FlashheatError, match="no name of a device"):
        compute_operators(BODY, 8, device="cudaz")


def _path_with_a_vertex_of_almost_no_area() -> tuple[CSR, Tensor, Tensor, Tensor, Tensor]:
    L = scipy.sparse.diags_array([-np.ones(19), [1, *[2] * 18, 1], -np.ones(19)], offsets=[-1, 0, 1]).tocsr()
    numbers, one = torch.arange(20, dtype=F64), torch.zeros(20, dtype=torch.int64)
    mass, points = 1e-16 ** (numbers == 10).to(F64), numbers[:, None] * torch.eye(1, 3, dtype=F64)
    return CSR.from_scipy(L), mass, points, one, one


def test_a_small_component_is_solved_through_its_inverse_where_areas_are_far_apart() -> None:
    found = lowest_eigenpairs(*_path_with_a_vertex_of_almost_no_area(), 18, "native")
    assert found.solver == ("dense-superlu",)
    assert found.residuals.max() < 1e-6


def test_a_sliver_does_not_excuse_wrong_eigenvectors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(*arguments: Any) -> tuple[Tensor, Tensor]:
        evals, U = spectrum._by_lanczos(*arguments, factorise=superlu)
        angle = 1e-3
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return evals, torch.cat([U[..., :2] @ torch.from_numpy(turn), U[..., 2:]], dim=2)

    monkeypatch.setattr(spectrum, "_solvers", lambda *_: [("turned", turned)])
    with pytest.raises(MeshError, match="badly shaped"):
        lowest_eigenpairs(*_path_with_a_vertex_of_almost_no_area(), 5, "native")


def test_a_filter_that_begins_too_low_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flashheat")
    evals = compute_operators(icosphere(4), 60, dtype=F64).evals
    assert "without a filter" not in caplog.text
    monkeypatch.setattr("flashheat.operators.shift_invert.WEYL", 0.5)
    torch.testing.assert_close(compute_operators(icosphere(4), 60, dtype=F64).evals, evals, rtol=1e-9, atol=0)
    assert "without a filter" in caplog.text


def test_a_sphere_stretched_by_1e5_has_the_spectrum_of_a_needle(shared_data: Path) -> None:
    mesh = Mesh.read(shared_data / "meshes" / "broken" / "anisotropic_1e5.off")
    half_length = np.ptp(mesh.verts, axis=0).max() / 2
    evals = compute_operators(mesh, 8, dtype=F64).evals[1:4] * half_length**2
    exact = [3.561, 12.157, 25.703]  # of (r f')' = -lambda r f, r^2 = 1 - z^2, on -1 < z < 1
    np.testing.assert_allclose(evals, exact, rtol=0.1)


def test_duplicate_faces_count_once_and_orientation_changes_no_eigenvalue() -> None:
    rng = np.random.default_rng(0)
    faces = np.where(rng.uniform(size=(BODY.n_faces, 1)) < 0.3, BODY.faces[:, ::-1], BODY.faces)
    messy = compute_operators(Mesh(BODY.verts, np.concatenate([faces, faces[:50, ::-1], faces[:9]])), 20, dtype=F64)
    clean = compute_operators(BODY, 20, dtype=F64)
    torch.testing.assert_close(messy.evals, clean.evals, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(messy.mass, clean.mass, rtol=1e-12, atol=0)
    tilt = (messy.frames[:, 2] * clean.frames[:, 2]).sum(dim=1).abs()
    assert tilt.min() > 0.97


def test_what_counts_as_a_manifold(shared_data: Path) -> None:
    faces = {name: Mesh.read(shared_data / "meshes" / "broken" / f"{name}.off").faces for name in (
        "ok_sphere162", "nonorientable_moebius", "quads_grid", "nonmanifold_edge_fin", "nonmanifold_vertex_bowtie",
    )}  # fmt: skip
    n_verts = [int(of.max()) + 1 for of in faces.values()]
    starts = np.cumsum([0, *n_verts[:-1]])
    packed = np.concatenate([of + start for of, start in zip(faces.values(), starts, strict=True)])
    mesh = torch.arange(5).repeat_interleave(torch.tensor(n_verts))
    assert manifold(torch.from_numpy(packed), mesh, 5).tolist() == [True, True, True, False, False]


def test_a_fin_is_part_of_the_surface() -> None:
    fin = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], [[0, 1, 2], [1, 0, 3], [0, 1, 4]])
    operators = compute_operators(fin, 5, dtype=F64)
    assert operators.mass.sum().item() == pytest.approx(1.5)
    assert_sound(operators)


@pytest.mark.parametrize(
    "name", ["coplanar_collapsed_line.off", "all_points_identical.off", "two_vertices_no_face.off"]
)
def test_no_usable_geometry_is_one_clear_line(shared_data: Path, name: str) -> None:
    mesh = Mesh.read(shared_data / "meshes" / "broken" / name)
    with pytest.raises(MeshError, match="must have") as error:
        compute_operators(mesh)
    assert "\n" not in str(error.value)


def test_a_scale_that_float32_cannot_hold_is_refused(shared_data: Path) -> None:
    for name in ("huge_coords_1e30.off", "tiny_coords_1e-20.off"):
        mesh = Mesh.read(shared_data / "meshes" / "broken" / name)
        with pytest.raises(MeshError, match="normalise"):
            compute_operators(mesh, 8)
        with pytest.raises(MeshError, match="normalise"):
            compute_operators(mesh, 1)
        assert_sound_in_unit_size(compute_operators(mesh, 8, dtype=F64))


def assert_sound_in_unit_size(operators: Operators) -> None:
    area = operators.mass.sum()
    np.testing.assert_allclose(operators.evals[1:4] * area / (4 * np.pi), [2, 2, 2], rtol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"convention": "upstream"}, "convention"), ({"k_eig": 0}, "k_eig"), ({"normals": np.ones((3, 3))}, "normals")],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(FlashheatError, match=message):
        compute_operators(BODY, **options)


def test_without_robust_laplacian_dirty_meshes_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "robust_laplacian", None)
    fin = SimpleNamespace(verts=np.eye(5, 3), faces=np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4], [1, 0, 2]]))
    fin.verts[3:] = [[0, 0, -1], [-1, 0, 0]]
    with pytest.raises(MissingExtraError, match=r"flashheat\[robust\]"):
        compute_operators(fin, 3)
    assert compute_operators(BODY, 3).k_valid == 3


def test_without_cholespy_superlu_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    body = ellipsoid((1.0, 0.8, 0.5), 3)
    expected = compute_operators(body, 30, dtype=F64)
    monkeypatch.setitem(sys.modules, "cholespy", None)
    operators = compute_operators(body, 30, dtype=F64)
    assert (expected.solver, operators.solver) == (("lanczos-cholmod",), ("lanczos-superlu",))
    torch.testing.assert_close(operators.evals, expected.evals, rtol=1e-10, atol=1e-10)
