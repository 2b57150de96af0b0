"""Nested dissection, the factorisation on it, and eigenpairs by both, against dense work and against Lanczos."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flashheat import Mesh, compute_operators
from flashheat.bench.eigenpairs import sphere_of_slivers
from flashheat.mesh import icosphere
from flashheat.operators import CSR, dissection, spectrum
from flashheat.operators.captured import Captured
from flashheat.operators.dissection import Dissection, dissect
from flashheat.operators.laplacian import cotangent
from flashheat.operators.multifrontal import analyse, factorise, solve
from flashheat.operators.subspace import SHIFT, lowest_by_subspace

F64 = torch.float64
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def system(mesh: Mesh, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Dense `L + I`, positions, and the entries of it: rows, columns, values."""
    verts, itself = torch.from_numpy(mesh.verts), torch.arange(mesh.n_verts)
    i, j, values = cotangent(verts, torch.from_numpy(mesh.faces))
    i, j, values = (
        torch.cat([i, itself]),
        torch.cat([j, itself]),
        torch.cat([values, torch.ones(len(itself), dtype=F64)]),
    )
    (L,) = CSR.from_entries(i, j, [values], mesh.n_verts)
    dense = torch.from_numpy(L.to_scipy().toarray())
    return tuple(of.to(device) for of in (dense, verts, L.rows(), L.indices, L.values))


def cut(points: Tensor, i: Tensor, j: Tensor) -> Dissection:
    return dissect(points, i, j, torch.zeros(len(points), dtype=torch.int64, device=points.device), 1)


def two_bodies_and_a_point() -> Mesh:
    one, other = icosphere(2), icosphere(1)
    verts = np.concatenate([one.verts, other.verts + 0.5, [[9.0, 9, 9]]])  # one within the other, a vertex of no face
    return Mesh(verts, np.concatenate([one.faces, other.faces + one.n_verts]))


def flat() -> Mesh:
    x, y = (of.ravel() for of in np.meshgrid(np.arange(20.0), np.arange(30.0), indexing="ij"))
    a = np.arange(600).reshape(20, 30)
    corners = [(a[:-1, :-1], a[1:, :-1], a[1:, 1:]), (a[:-1, :-1], a[1:, 1:], a[:-1, 1:])]
    return Mesh(np.stack([x, y, 0 * x], 1), np.concatenate([np.stack(of, -1).reshape(-1, 3) for of in corners]))


BODIES = {
    "sphere": icosphere(3),
    "a sphere in one cell": icosphere(1),
    "slivers": sphere_of_slivers(900),
    "two bodies and a point": two_bodies_and_a_point(),
    "flat": flat(),
    "all at one place": Mesh(np.zeros((642, 3)), np.zeros((0, 3), int)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("name", BODIES)
def test_cells_of_a_level_have_no_entries_between_them(
    name: str, cuts: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissection, "LEAF", 20)
    monkeypatch.setattr(dissection, "TWICE_BELOW", 0 if cuts == 1 else 10_000)
    _, points, i, j, _ = system(BODIES[name], device)
    found = cut(points, i, j)
    assert found.depth == max(0, int(np.ceil(np.log2(len(points) / 20)))) // found.cuts
    assert found.cuts == (cuts if found.depth else 1)
    assert found.cell.max() < found.n_cells[-1]
    up = found.cuts * (found.level[i] - found.level[j]).clamp_min(0)
    together = found.level[i] >= found.level[j]
    assert (found.cell[i] >> up == found.cell[j])[together].all()  # the other row is of the same cell or of one above
    size = torch.bincount(found.cell[found.level == found.depth], minlength=1)
    assert size.max() <= 20 * found.cuts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("leaf", "twice_below"), [(5, 0), (40, 0), (40, 10_000), (10_000, 0)])
@pytest.mark.parametrize("name", BODIES)
def test_a_solve_is_that_of_the_dense_matrix(
    name: str, leaf: int, twice_below: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissection, "LEAF", leaf)
    monkeypatch.setattr(dissection, "TWICE_BELOW", twice_below)
    dense, points, i, j, values = system(BODIES[name], device)
    b = torch.randn(len(points), 7, dtype=F64, generator=torch.Generator().manual_seed(0)).to(device)
    x = solve(factorise(analyse(cut(points, i, j), i, j), values), b)
    torch.testing.assert_close(x, torch.linalg.solve(dense, b), rtol=1e-10, atol=1e-11)


def test_several_matrices_of_any_sizes_are_solved_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dissection, "LEAF", 20)
    systems = [system(icosphere(level)) for level in (2, 0, 3)]
    n, starts = [len(of[0]) for of in systems], [0, 162, 174]
    i, j = (torch.cat([of[at] + s for of, s in zip(systems, starts, strict=True)]) for at in (2, 3))
    root = torch.arange(3).repeat_interleave(torch.tensor(n))
    cells = dissect(torch.cat([of[1] for of in systems]), i, j, root, 3)
    assert (cells.cell >> (cells.cuts * cells.level) == root).all()
    b = torch.randn(sum(n), 4, dtype=F64)
    x = solve(factorise(analyse(cells, i, j), torch.cat([of[4] for of in systems])), b)
    for (dense, *_), part, of_b in zip(systems, x.split(n), b.split(n), strict=True):
        torch.testing.assert_close(part, torch.linalg.solve(dense, of_b), rtol=1e-10, atol=1e-11)


def test_one_pattern_serves_many_values_and_refuses_those_that_are_not_positive() -> None:
    dense, points, i, j, values = system(icosphere(3))
    pattern = analyse(cut(points, i, j), i, j)
    b = torch.ones(len(points), 1, dtype=F64)
    for factor in (1.0, 3.0):
        x = solve(factorise(pattern, factor * values), b)
        torch.testing.assert_close(x, torch.linalg.solve(factor * dense, b))
    with pytest.raises(torch.linalg.LinAlgError, match="positive definite"):
        factorise(pattern, -values)


@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_function_does_the_same(device: str) -> None:
    a = torch.randn(30, 30, dtype=F64, device=device)
    function = Captured(lambda x: (a @ x).sin())
    for n in (4, 4, 4, 9, 4):
        x = torch.randn(30, n, dtype=F64, device=device)
        assert torch.equal(function(x), (a @ x).sin())
    assert (function.graph is not None) == (device == "cuda")


SPECTRA = {
    "like a surface": torch.arange(600.0, dtype=F64),
    "each eight times": torch.arange(600, dtype=F64) // 8,
    "far apart": torch.logspace(0, 12, 600, dtype=F64),
    "a gap after the last": torch.cat([torch.arange(40, dtype=F64), 1e3 + torch.arange(560, dtype=F64)]),
}


@pytest.mark.parametrize("cut_factor", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_lowest_of_spectra_that_are_unkind(name: str, cut_factor: float) -> None:
    evals, k, m = SPECTRA[name], 40, 56
    rng = torch.Generator().manual_seed(1)
    Q = torch.linalg.qr(torch.randn(600, 600, dtype=F64, generator=rng)).Q
    scales = torch.tensor([1.0, 7.0], dtype=F64)  # a batch of two
    evals = scales[:, None] * evals
    shift = SHIFT * cut_factor * evals[:, m]
    start = torch.randn(600, m, dtype=F64, generator=rng).expand(2, -1, -1)
    known = Q[:, :1].expand(2, -1, -1)
    found, U = lowest_by_subspace(
        lambda x: Q @ (evals[..., None] * (Q.T @ x)), lambda x: Q @ ((Q.T @ x) / (evals + shift[:, None])[..., None]),
        shift, scales, known, start, k - 1,
    )  # fmt: skip
    torch.testing.assert_close(found, evals[:, 1:k], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(U.mT @ U, torch.eye(k - 1, dtype=F64).expand(2, -1, -1), rtol=0, atol=1e-12)
    assert (known.mT @ U).abs().max() < 1e-12


def test_where_passes_stall_the_next_solver_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flashheat.operators.subspace.MOST_PASSES", 1)
    of_cpu = spectrum._solvers
    monkeypatch.setattr(spectrum, "_solvers", lambda *of: [("subspace", spectrum._by_subspace), *of_cpu(*of)])
    assert "lanczos" in compute_operators(icosphere(3), 60, dtype=F64).solver[0]
    assert "subspace reached residuals of" in caplog.text


def rna(shared_data: Path) -> Mesh:
    surface = np.load(shared_data / "rna" / "npz_train" / "1Q82_B.npz")  # has a sliver vertex of 1e-11 of the area
    return Mesh(surface["vertices"], surface["faces"])


@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
@pytest.mark.parametrize("name", ["sphere", "slivers", "rna"])
def test_eigenpairs_by_subspace_are_those_of_lanczos(
    name: str, convention: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = {"sphere": icosphere(4), "slivers": sphere_of_slivers(2500)}.get(name) or rna(shared_data)
    k = 60
    by_lanczos = compute_operators(mesh, k, convention, dtype=F64)
    of_all = spectrum._solvers
    monkeypatch.setattr(
        spectrum,
        "_solvers",
        lambda component, k: [("subspace", spectrum._by_subspace)] if k > 50 else of_all(component, k),
    )
    by_subspace = compute_operators(mesh, k, convention, dtype=F64)
    assert "subspace" in by_subspace.solver[0]
    torch.testing.assert_close(by_subspace.evals, by_lanczos.evals, rtol=1e-7, atol=1e-7)
    gram = by_subspace.evecs.T @ (by_subspace.mass[:, None] * by_subspace.evecs)
    torch.testing.assert_close(gram, torch.eye(k, dtype=F64), rtol=0, atol=1e-9)
    again = compute_operators(mesh, k, convention, dtype=F64)
    assert torch.equal(again.evecs, by_subspace.evecs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
@pytest.mark.parametrize("name", ["sphere", "slivers", "rna"])
def test_on_a_gpu_they_are_those_of_the_cpu_and_repeat(name: str, convention: str, shared_data: Path) -> None:
    if name == "rna" and not shared_data.exists():
        pytest.skip("needs the real meshes")
    mesh = {"sphere": icosphere(4), "slivers": sphere_of_slivers(2500)}.get(name) or rna(shared_data)
    of = partial(compute_operators, mesh, 60, convention, dtype=F64)
    there, here = of(device="cuda"), of()
    assert there.evecs.is_cuda
    assert "subspace-multifrontal" in there.solver[0]
    torch.testing.assert_close(there.evals.cpu(), here.evals, rtol=1e-7, atol=1e-7)
    assert torch.equal(of(device="cuda").evecs, there.evecs)
