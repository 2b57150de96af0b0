"""The kernel's arithmetic under Triton's interpreter, in a process that `tests/test_diffuse_triton.py` starts."""

import os
import sys

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 from the start of the process", allow_module_level=True)

from flashheat.bench.cases import random_case
from flashheat.ops import basis, diffuse, diffuse_reference, diffuse_triton, from_basis, launch, to_basis
from flashheat.ops.tiles import Tile
from tests import diffuse_cases

# The interpreter's products of bf16 are wrong, so the classes that split into bf16 run on a GPU only.
TILES = {
    "ieee": Tile(32, 32, 16, 4, 2, 1, "ieee"),
    "fp16x3": Tile(32, 32, 16, 4, 2, 1, "fp16x3"),
    "fp16x3 registers": Tile(32, 32, 16, 4, 2, 1, "fp16x3", "registers"),
}


@pytest.fixture(params=list(TILES))
def interpreted(request, monkeypatch):
    """Send CPU tensors through the kernel as the interpreter runs it, in small tiles."""
    for name in ("flashheat.ops.basis", "flashheat.ops.diffuse"):
        monkeypatch.setattr(sys.modules[name], "path_of", lambda *_: "highest")
    monkeypatch.setattr(launch, "choose_tile", lambda *_: TILES[request.param])
    launch.cut.cache_clear()
    yield
    launch.cut.cache_clear()


@pytest.mark.parametrize(("V", "K", "C"), [(1, 1, 1), (33, 5, 3), (101, 19, 7), (35, 130, 17)])
def test_one_mesh_and_every_gradient_match_the_reference(interpreted, V, K, C):
    for name, error in diffuse_cases.errors(random_case(V, K, C, device="cpu")).items():
        assert error < 2e-6, name


@pytest.mark.parametrize("sizes", [[40, 0, 33, 1], [0], [64], [3] * 5])
def test_packed_meshes_match_the_reference(interpreted, sizes):
    case = random_case(0, 9, 5, sizes=sizes, device="cpu")
    for name, error in diffuse_cases.errors(case).items():
        assert error < 2e-6, name


def test_a_leading_batch_axis_matches_the_reference(interpreted):
    x, mass, evecs = torch.randn(3, 50, 6), torch.rand(3, 50), torch.randn(3, 50, 11)
    evals, times = torch.rand(3, 11), torch.rand(6)
    torch.testing.assert_close(diffuse(x, mass, evals, evecs, times), diffuse_reference(x, mass, evals, evecs, times))


def test_column_major_and_truncated_bases_need_no_copy(interpreted):
    case = random_case(90, 24, 8, device="cpu")
    expected = diffuse_reference(case.x, case.mass, case.evals[:10], case.evecs[:, :10], case.times)
    for evecs in (case.evecs[:, :10], case.evecs.T.contiguous().T[:, :10]):
        y = diffuse(case.x, case.mass, case.evals[:10], evecs, case.times)
        torch.testing.assert_close(y, expected)


def test_channels_of_very_different_size_keep_their_accuracy(interpreted):
    case = random_case(120, 16, 8, device="cpu")
    case.x.mul_(10.0 ** torch.arange(-20, 20, 5))
    y = diffuse(case.x, case.mass, case.evals, case.evecs, case.times)
    exact = diffuse_reference(*(t.double() for t in (case.x, case.mass, case.evals, case.evecs, case.times)))
    assert ((y - exact).norm(dim=0) / exact.norm(dim=0)).max() < 2e-6


@pytest.mark.parametrize("sizes", [None, [20, 30]])
@pytest.mark.parametrize("name", ["times", "evals"])
def test_a_nan_reaches_d_times_of_one_mesh_and_of_several(interpreted, name, sizes):
    case = random_case(40, 6, 4, sizes=sizes, device="cpu")
    getattr(case, name).view(-1)[1] = float("nan")
    args = (case.x, case.mass, case.evals, case.evecs, case.times.requires_grad_(), case.offsets)
    (d_times,) = torch.autograd.grad(diffuse(*args).sum(), case.times)
    (expected,) = torch.autograd.grad(diffuse_reference(*args).sum(), case.times)
    assert expected.isnan().any()
    assert torch.equal(d_times.isnan(), expected.isnan())


def test_offsets_with_a_stride_are_read_as_they_are(interpreted):
    case = random_case(0, 6, 4, sizes=[20, 30], device="cpu")
    offsets = torch.tensor([0, 7, 20, 7, 50])[::2]
    y = diffuse(case.x, case.mass, case.evals, case.evecs, case.times, offsets)
    torch.testing.assert_close(
        y, diffuse_reference(case.x, case.mass, case.evals, case.evecs, case.times, case.offsets)
    )


def test_to_basis_and_from_basis_match_the_reference(interpreted):
    case = random_case(0, 12, 5, sizes=[30, 41], device="cpu")
    s = to_basis(case.x, case.mass, case.evecs, case.offsets)
    torch.testing.assert_close(s, basis.to_basis_reference(case.x, case.mass, case.evecs, case.offsets))
    y = from_basis(s, case.evecs, case.offsets)
    torch.testing.assert_close(y, basis.from_basis_reference(s, case.evecs, case.offsets))


def test_second_derivatives_match_the_reference(interpreted):
    case = random_case(0, 7, 4, sizes=[25, 40], device="cpu")
    for got, expected in zip(
        diffuse_cases.second_derivatives(case, diffuse),
        diffuse_cases.second_derivatives(case.double(), diffuse_reference),
        strict=True,
    ):
        assert diffuse_cases.relative(got, expected) < 1e-5


def test_only_the_derivatives_that_are_asked_for_are_computed(interpreted, monkeypatch):
    wanted = []
    launch_backward = diffuse_triton.backward
    monkeypatch.setattr(diffuse_triton, "backward", lambda *a, **k: (wanted.append(k), launch_backward(*a, **k))[1])
    case = random_case(40, 6, 4, device="cpu")
    x = case.x.requires_grad_()
    diffuse(x, case.mass, case.evals, case.evecs, case.times).sum().backward()
    assert wanted == [{"expand": True, "d_times": False, "d_evals": False}]


def test_no_vertices(interpreted):
    case = random_case(0, 16, 8, device="cpu")
    x = case.x.requires_grad_()
    y, s = diffuse(x, case.mass, case.evals, case.evecs, case.times, return_spectral=True)
    (y.sum() + s.sum()).backward()
    assert y.shape == (0, 8)
    assert not s.any()


def test_features_and_basis_of_every_layout(interpreted):
    case = random_case(101, 30, 10, device="cpu")
    expected = diffuse_reference(case.x, case.mass, case.evals[:19], case.evecs[:, :19], case.times)
    shifted = torch.empty(case.x.numel() + 1)[1:].view_as(case.x).copy_(case.x)
    for x in (case.x, shifted, case.x.T.contiguous().T):
        for evecs in (case.evecs[:, :19], case.evecs.T.contiguous().T[:, :19]):
            torch.testing.assert_close(diffuse(x, case.mass, case.evals[:19], evecs, case.times), expected)


@pytest.fixture
def by_cublas(monkeypatch):
    """Send CPU tensors through the path of cuBLAS; the products are then those of the CPU."""
    for name in ("flashheat.ops.basis", "flashheat.ops.diffuse"):
        monkeypatch.setattr(sys.modules[name], "path_of", lambda *_: "cublas")


@pytest.mark.parametrize(("V", "K", "C"), [(1, 1, 1), (33, 5, 3), (101, 600, 17)])
def test_by_cublas_one_mesh_and_every_gradient_match_the_reference(by_cublas, V, K, C):
    for name, error in diffuse_cases.errors(random_case(V, K, C, device="cpu")).items():
        assert error < 2e-6, name


def test_by_cublas_a_leading_batch_axis_matches_the_reference(by_cublas):
    rng = torch.Generator().manual_seed(0)
    shapes = ((3, 50, 6), (3, 50), (3, 11), (3, 50, 11), (6,))
    inputs = [torch.rand(shape, generator=rng).requires_grad_() for shape in shapes]
    exact_inputs = [t.detach().double().requires_grad_() for t in inputs]
    ours, exact = diffuse(*inputs), diffuse_reference(*exact_inputs)
    g = torch.rand(ours.shape, generator=rng)
    found = (ours, *torch.autograd.grad(ours, inputs, g))
    wanted = (exact, *torch.autograd.grad(exact, exact_inputs, g.double()))
    for name, got, right in zip(("y", *diffuse_cases.NAMES), found, wanted, strict=True):
        assert diffuse_cases.relative(got.detach(), right.detach()) < 2e-6, name


def test_by_cublas_second_derivatives_and_projections_match_the_reference(by_cublas):
    case = random_case(40, 7, 5, device="cpu")
    wanted = diffuse_cases.second_derivatives(case.double(), diffuse_reference)
    for ours, exact in zip(diffuse_cases.second_derivatives(case, diffuse), wanted, strict=True):
        assert diffuse_cases.relative(ours, exact) < 1e-5
    s = to_basis(case.x, case.mass, case.evecs)
    torch.testing.assert_close(s, basis.to_basis_reference(case.x, case.mass, case.evecs))
    torch.testing.assert_close(from_basis(s, case.evecs), basis.from_basis_reference(s, case.evecs))
