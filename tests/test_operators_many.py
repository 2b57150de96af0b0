"""Many meshes at once are each what they are alone; eigenvectors of equal eigenvalues do not depend on the solver."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from flashheat import Mesh, Operators, compute_operators
from flashheat.errors import MeshError
from flashheat.mesh import ellipsoid, grid, icosphere
from flashheat.operators import components, compute_operators_of_many, spectrum
from flashheat.operators.gradient import _regularised_inverse
from flashheat.operators.rotations import canonical
from flashheat.operators.segments import _by_labels, connected, ranked, reduced, summed

F64 = torch.float64
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def two_bodies() -> Mesh:
    one, other = ellipsoid((1.0, 0.8, 0.5), 3), icosphere(1)
    return Mesh(np.concatenate([one.verts, other.verts + 5]), np.concatenate([one.faces, other.faces + one.n_verts]))


def bowtie() -> Mesh:
    one = icosphere(2)
    turned = np.where(one.faces == 0, 0, one.faces + one.n_verts - 1)  # both share vertex 0
    return Mesh(np.concatenate([one.verts, 2 * one.verts[0] - one.verts[1:]]), np.concatenate([one.faces, turned]))


def several() -> list[Mesh]:
    sphere = icosphere(3)
    rng = np.random.default_rng(0)
    return [
        sphere,
        two_bodies(),
        ellipsoid((1.0, 0.7, 0.4), 2),
        Mesh(1e-3 * ellipsoid((1.0, 0.7, 0.4), 3).verts + 7.0, sphere.faces),
        Mesh(grid(20, 12).verts, grid(20, 12).faces),
        Mesh(rng.standard_normal((80, 3)), np.zeros((0, 3), int)),
        bowtie(),
        Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [7, 7, 7]], [[0, 1, 2]]),
    ]


def heat(of: Operators) -> Tensor:
    """The diagonal of the heat kernel, which no rotation of equal eigenvalues changes."""
    return of.evecs.square() @ torch.exp(-of.evals * of.mass.sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
@pytest.mark.parametrize("batched", [False, True], ids=["alone", "in batches"])
def test_each_of_many_is_as_alone(convention: str, device: str, batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    meshes = [mesh for mesh in several() if convention == "native" or len(mesh.faces)]
    alone = [compute_operators(mesh, 33, convention, dtype=F64) for mesh in meshes]
    if batched and device == "cpu":
        monkeypatch.setitem(components.BATCH_ROWS, "cpu", 3000)
        of_all = spectrum._solvers
        monkeypatch.setattr(
            spectrum,
            "_solvers",
            lambda batch, k: (
                [("subspace", spectrum._by_subspace)] if min(m.n for m in batch.members) > 140 else of_all(batch, k)
            ),
        )
    together = compute_operators_of_many(meshes, 33, convention, device, F64)
    assert len(together) == len(meshes)
    for one, other in zip(alone, (of.to("cpu") for of in together), strict=True):
        assert one.batch_size == 1
        assert (other.k_valid, other.n_components) == (one.k_valid, one.n_components)
        for name in ("faces", "edges"):
            assert torch.equal(getattr(other, name), getattr(one, name))
        for name in ("mass", "frames"):
            torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=1e-11, atol=1e-11)
        largest = float(one.evals.amax())
        torch.testing.assert_close(other.evals, one.evals, rtol=1e-7, atol=1e-8 * largest)
        torch.testing.assert_close(heat(other), heat(one), rtol=1e-7, atol=1e-9 * float(heat(one).amax()))
        for name in ("L", "gradX", "gradY"):
            difference = getattr(other, name).to_scipy() - getattr(one, name).to_scipy()
            assert abs(difference).max() <= 1e-9 * abs(getattr(one, name).to_scipy()).max()
        assert other.residuals.max() < 1e-6
        gram = other.evecs.T @ (other.mass[:, None] * other.evecs)
        assert (gram - torch.diag((torch.arange(33) < other.k_valid).to(F64))).abs().max() < 1e-9


def test_small_ones_that_have_fewer_eigenpairs_than_others_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(components.BATCH_ROWS, "cpu", 3000)
    solved, by_dense = [], spectrum._by_dense
    monkeypatch.setattr(
        spectrum, "_by_dense", lambda batch, *rest: solved.extend(batch.members) or by_dense(batch, *rest)
    )
    meshes = [grid(n, 4) for n in (6, 6, 5)] + [grid(5, 3), grid(6, 5)]
    for of, n in zip(compute_operators_of_many(meshes, 24, dtype=F64), (24, 24, 20, 15, 24), strict=True):
        assert int(of.k_valid) == n
        assert of.residuals.max() < 1e-6
    assert len(solved) == len(meshes)


def test_one_that_fails_is_named_by_its_size() -> None:
    line = Mesh([[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]])
    with pytest.raises(MeshError, match="got 3 vertices and 1 faces, none with area"):
        compute_operators_of_many([icosphere(1), line, icosphere(1)], 5)


def test_a_mesh_of_a_pack_is_held_to_its_own_scale_and_vertices() -> None:
    tiny = Mesh(1e-25 * icosphere(1).verts, icosphere(1).faces)
    with pytest.raises(MeshError, match="must let `mass` fit"):
        compute_operators_of_many([icosphere(1), tiny], 5)
    assert compute_operators_of_many([icosphere(1), tiny], 5, dtype=F64)[1].evals[1] > 1e49
    beyond = SimpleNamespace(verts=icosphere(0).verts, faces=np.array([[0, 1, 12]]))
    with pytest.raises(MeshError, match="0 to 11: got 12"):
        compute_operators_of_many([beyond, icosphere(1)], 5)


@pytest.mark.parametrize("device", DEVICES)
def test_equal_eigenvalues_have_the_same_vectors_whatever_found_them(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 49  # the multiplets of a sphere are whole there: 1 + 3 + 5 + ... + 13
    by_lanczos = compute_operators(icosphere(3), k, dtype=F64)
    if device == "cpu":
        monkeypatch.setattr(spectrum, "_solvers", lambda *_: [("subspace", spectrum._by_subspace)])
    by_subspace = compute_operators(icosphere(3), k, dtype=F64, device=device).to("cpu")
    assert "subspace" in by_subspace.solver[0]
    assert int((by_lanczos.evals.diff() < 1e-9).sum()) > 25  # of the icosahedron's symmetry
    torch.testing.assert_close(by_subspace.evecs, by_lanczos.evecs, rtol=0, atol=1e-5)


def test_the_canonical_rotation_depends_on_the_span_alone() -> None:
    U = torch.linalg.qr(torch.randn(2, 50, 6, dtype=F64, generator=torch.Generator().manual_seed(0))).Q
    evals = torch.tensor([[0.0, 1, 1, 1, 2, 5], [0, 3, 4, 4, 4, 4]], dtype=F64)
    null, unit = torch.full((2, 50, 1), 50**-0.5, dtype=F64), torch.ones(2, 1, dtype=F64)
    expected = canonical(evals, U, null, unit)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=F64)).Q
    other = torch.cat([U[..., :2], U[..., 2:] @ turn], 2)
    other = torch.stack([torch.cat([-U[0, :, :1], U[0, :, 1:4].roll(1, 1), -U[0, :, 4:]], 1), other[1]])
    turned = canonical(evals, other, null, unit)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(turned.mT @ turned, torch.eye(6, dtype=F64).expand(2, -1, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_ranks_and_groups(device: str) -> None:
    rng = torch.Generator().manual_seed(0)
    where = torch.randint(0, 50, (400,), generator=rng)
    values = torch.randn(400, 2, dtype=F64, generator=rng)
    total, (size, rank) = summed(where.to(device), values.to(device), 60), ranked(where.to(device), 60)
    ascending = where.sort().values
    parts = {how: reduced(values[:, 0].to(device), ascending.to(device), 60, how) for how in ("sum", "min", "max")}
    for of in range(60):
        torch.testing.assert_close(total[of].cpu(), values[where == of].sum(0))
        assert size[of] == (where == of).sum()
        assert rank[where.to(device) == of].tolist() == list(range(int(size[of])))
        mine = values[ascending == of, 0]
        expected = (mine.sum(), mine.min(), mine.max()) if len(mine) else (0.0, np.inf, -np.inf)
        np.testing.assert_allclose([float(parts[how][of]) for how in ("sum", "min", "max")], expected)
    assert torch.equal(summed(where.to(device), values.to(device), 60), total)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_joints", [0, 30, 90, 400])
def test_groups_are_those_of_scipy(n_joints: int, device: str) -> None:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i, j = torch.randint(0, 100, (2, n_joints), generator=torch.Generator().manual_seed(n_joints))
    expected = connected_components(coo_array((np.ones(n_joints), (i, j)), shape=(100, 100)), directed=False)[1]
    chain = torch.randperm(5000, generator=torch.Generator().manual_seed(1)).to(device)
    for way in (connected, _by_labels):
        assert way(i.to(device), j.to(device), 100).tolist() == expected.tolist()
        assert (way(chain[:-1], chain[1:], 5000) == 0).all()


@pytest.mark.parametrize("convention", ["native", "diffusion_net"])
def test_two_by_two_systems_are_inverted_as_by_their_eigenvectors(convention: str) -> None:
    edges = torch.randn(60, 5, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    edges[:20, :, 1] *= torch.logspace(0, -8, 20, dtype=F64)[:, None]  # ever thinner
    edges[20] = 0
    edges[21] = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1], [0, 0]])
    edges[22, :, 0] = 0
    G = edges.mT @ edges
    values, vectors = torch.linalg.eigh(G)
    if convention == "native":
        values = values.maximum(1e-6 * values.sum(1, keepdim=True))
    else:
        values = values.clamp_min(0) + 1e-5
    expected = (vectors * torch.where(values > 0, 1 / values, 0.0)[:, None]) @ vectors.mT
    found = _regularised_inverse(torch.stack([G[:, 0, 0], G[:, 0, 1], G[:, 1, 1]], 1), convention)
    found = found[:, [0, 1, 1, 2]].view(-1, 2, 2)
    error = (found - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2)).clamp_min(1e-300)
    assert error.max() < 1e-8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_is_copied_to_the_cpu_but_small_matrices(shared_data: Path) -> None:
    of = partial(compute_operators, icosphere(5), 64, device="cuda")
    of()
    with torch.profiler.profile(profile_memory=False) as profile:
        of()
    down = [event for event in profile.events() if "Memcpy DtoH" in event.name]
    assert down
    assert all(event.device_time < 200 for event in down)
