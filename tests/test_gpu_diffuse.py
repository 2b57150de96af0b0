"""The Triton kernel on a GPU, held to the float64 reference and to plain PyTorch in the same precision class."""

import os
import subprocess
import sys

import pytest
import torch

from flashheat.bench.cases import Case, random_case
from flashheat.bench.timing import peak_bytes
from flashheat.ops import diffuse, diffuse_reference, tiles
from flashheat.ops.dispatch import path_of
from tests import diffuse_cases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LIMITS = {"highest": 1e-6, "high": 5e-4, "bf16": 4e-3, "fp16": 1e-3}


@pytest.fixture(params=list(LIMITS))
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if request.param == "high" else "highest")
    yield request.param
    torch.set_float32_matmul_precision(before)


def dtype_of(precision: str) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def eager(x, mass, evals, evecs, times, offsets=None, return_spectral=False):
    """Plain PyTorch in the dtype of `x`, one mesh."""
    s = torch.exp(-evals[:, None] * times) * (evecs.mT @ (x * mass[:, None].to(x.dtype)))
    y = evecs @ s.to(evecs.dtype)
    return (y, s) if return_spectral else y


def check(case: Case, precision: str) -> None:
    diffuse_cases.poison()
    ours, plain = diffuse_cases.errors(case), {}
    if case.offsets is None:
        plain = diffuse_cases.errors(case, eager)
    for name, error in ours.items():
        assert error <= max(2 * plain.get(name, 0.0), LIMITS[precision] * (1 if case.offsets is None else 2)), name


@pytest.mark.parametrize("V", [1, 63, 1000, 7001, 20011, 150_001])
def test_sizes(V, precision):
    check(random_case(V, 128, 128, dtype_of(precision)), precision)


@pytest.mark.parametrize(("K", "C"), [(1, 1), (3, 130), (64, 64), (100, 48), (300, 3), (256, 128), (512, 512)])
def test_columns(K, C, precision):
    check(random_case(3001, K, C, dtype_of(precision)), precision)


@pytest.mark.parametrize(("V", "K", "C"), [(20_011, 256, 128), (9_001, 512, 130), (700, 520, 64), (600, 64, 700)])
def test_wide_bases_take_cublas_and_are_as_exact(V, K, C, precision):
    case = random_case(V, K, C, dtype_of(precision))
    if precision != "fp16":
        assert path_of(case.evecs, case.x, None) == "cublas"
    check(case, precision)


@pytest.mark.parametrize("sizes", [[500, 0, 8000, 1, 63], [37] * 1500, [0, 0]])
def test_packed(sizes, precision):
    check(random_case(0, 64, 32, dtype_of(precision), sizes=sizes), precision)


def test_no_vertices():
    case = random_case(0, 16, 8)
    x = case.x.requires_grad_()
    y, s = diffuse(x, case.mass, case.evals, case.evecs, case.times, return_spectral=True)
    (y.sum() + s.sum()).backward()
    assert y.shape == (0, 8)
    assert not s.any()


def test_strides_and_misaligned_storage(precision):
    case = random_case(4001, 130, 40, dtype_of(precision))
    expected = diffuse_reference(
        *(t.double() for t in (case.x, case.mass, case.evals[:99], case.evecs[:, :99], case.times))
    )
    shifted = torch.empty(case.x.numel() + 1, device="cuda", dtype=case.x.dtype)[1:].view_as(case.x).copy_(case.x)
    for x in (case.x, shifted, case.x.T.contiguous().T):
        for evecs in (case.evecs[:, :99], case.evecs.T.contiguous().T[:, :99]):
            y = diffuse(x, case.mass, case.evals[:99], evecs, case.times)
            assert diffuse_cases.relative(y, expected) < LIMITS[precision]


def test_features_and_basis_of_different_dtypes():
    case = random_case(5000, 128, 64)
    expected = diffuse_reference(*(t.double() for t in (case.x, case.mass, case.evals, case.evecs, case.times)))
    for x_dtype, basis_dtype in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.float32),
    ):
        y = diffuse(case.x.to(x_dtype), case.mass, case.evals, case.evecs.to(basis_dtype), case.times)
        assert y.dtype == x_dtype
        assert diffuse_cases.relative(y, expected) < 5e-3


def test_fp16_with_areas_far_below_its_range():
    case = random_case(3000, 64, 32, torch.float16)
    mass, evecs = case.mass * 1e-9, case.evecs
    s = diffuse(case.x, mass, case.evals, evecs, case.times, return_spectral=True)[1]
    s_expected = diffuse_reference(*(t.double() for t in (case.x, mass, case.evals, evecs, case.times)), None, True)[1]
    assert diffuse_cases.relative(s, s_expected) < 1e-3


@pytest.mark.parametrize("name", ["x", "mass", "evals", "evecs", "times"])
def test_a_nan_reaches_all_that_depends_on_it(name):
    case = random_case(1001, 32, 32)
    getattr(case, name).view(-1)[5] = torch.nan
    wanted = diffuse_cases.results(case, diffuse_reference)
    for what, ours in diffuse_cases.results(case).items():
        assert (ours.isnan() | ~wanted[what].isnan()).all(), f"{what} hides a NaN of {name}"


def test_second_derivatives():
    case = random_case(0, 64, 16, sizes=[700, 900])
    for got, expected in zip(
        diffuse_cases.second_derivatives(case, diffuse),
        diffuse_cases.second_derivatives(case.double(), diffuse_reference),
        strict=True,
    ):
        assert diffuse_cases.relative(got, expected) < 1e-5


def test_transforms_and_compile_take_the_reference():
    case = random_case(300, 16, 8)
    args = (case.mass, case.evals, case.evecs, case.times)
    _, tangent = torch.func.jvp(lambda x: diffuse(x, *args), (case.x,), (case.g,))
    torch.testing.assert_close(tangent, diffuse_reference(case.g, *args), rtol=1e-4, atol=1e-6)
    batch = torch.func.vmap(lambda x: diffuse(x, *args))(torch.stack([case.x, case.g]))
    torch.testing.assert_close(batch[1], diffuse_reference(case.g, *args), rtol=1e-4, atol=1e-6)


def shipped(wgmma: bool) -> list[tuple[str, tiles.Tile]]:
    """Precision class and tile, for Hopper or for the other cards."""
    return [(name, tile) for name in ("highest", "high", "half") for _, tile in tiles.table(name, wgmma)]


@pytest.mark.parametrize(("name", "tile"), dict.fromkeys(shipped(True) + shipped(False)), ids=str)
def test_every_shipped_tile_is_exact_on_integers(name, tile):
    """Hopper has room for the tiles of the other cards too; these are spared those of Hopper."""
    from flashheat.bench.sweep import check_exact

    if torch.cuda.get_device_capability()[0] != 9 and (name, tile) not in shipped(False):
        pytest.skip("a tile for Hopper alone")
    for K, C in ((128, 128), (256, 64)):
        assert check_exact(name, tile, K, C) == ""


def test_repeats_without_a_hang_and_bitwise():
    case = random_case(2000, 128, 128)
    args = (case.x, case.mass, case.evals, case.evecs, case.times)
    first = diffuse(*args)
    for _ in range(10_000):
        last = diffuse(*args)
    assert torch.equal(first, last)


def test_other_streams_and_graphs_side_by_side():
    cases = [random_case(3000, 128, 128, seed=i) for i in range(4)]
    expected = [diffuse(c.x, c.mass, c.evals, c.evecs, c.times) for c in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(200):
        got = []
        for case, stream in zip(cases, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(diffuse(case.x, case.mass, case.evals, case.evecs, case.times))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = diffuse(cases[0].x, cases[0].mass, cases[0].evals, cases[0].evecs, cases[0].times)
    for _ in range(100):
        graph.replay()
        with torch.cuda.stream(streams[1]):
            other = diffuse(cases[1].x, cases[1].mass, cases[1].evals, cases[1].evecs, cases[1].times)
    torch.cuda.synchronize()
    assert torch.equal(y, expected[0])
    assert torch.equal(other, expected[1])


@pytest.mark.slow
def test_more_elements_than_32_bits_count():
    V, K, C = 16_800_000, 128, 16
    case = random_case(V, K, C, torch.bfloat16)
    y, s = diffuse(case.x, case.mass, case.evals, case.evecs, case.times, return_spectral=True)
    tail = slice(V - 5000, V)
    assert diffuse_cases.relative(y[tail], case.evecs[tail].double() @ s.double()) < 4e-3
    evecs = case.evecs.T.contiguous().T
    assert torch.equal(diffuse(case.x, case.mass, case.evals, evecs, case.times)[tail], y[tail])


def test_peak_memory_is_below_eager_by_one_feature_array():
    case = random_case(64_000, 128, 128)

    def peak(run) -> int:
        x, times = case.x.detach().requires_grad_(), case.times.detach().requires_grad_()
        return peak_bytes(
            lambda: torch.autograd.grad(run(x, case.mass, case.evals, case.evecs, times), [x, times], case.g)
        )

    assert peak(diffuse) <= peak(eager) - case.x.numel() * 4


def test_few_binaries_serve_a_thousand_sizes(precision):
    """K and C that no other test uses, so that what is new in Triton's cache is of this test."""
    from flashheat.ops.diffuse_kernel_triton import diffuse_kernel

    def n_binaries() -> int:
        return sum(len(caches[0]) for caches in diffuse_kernel.device_caches.values())

    whole, before = random_case(120_000, 120, 72, dtype_of(precision)), n_binaries()
    some = torch.logspace(0, 5, 1000).long() + torch.arange(1000)  # odd, even, multiples of 16, all different
    for V in [*some.tolist(), *range(16, 16_000, 1600)]:
        x, times = whole.x[:V].detach().requires_grad_(), whole.times.detach().requires_grad_()
        y = diffuse(x, whole.mass[:V], whole.evals, whole.evecs[:V], times)
        torch.autograd.grad(y, [x, times], whole.g[:V])
    assert 0 < n_binaries() - before <= 8


@pytest.mark.slow
def test_a_first_call_compiles_within_five_seconds(precision, tmp_path):
    name, mode = str(dtype_of(precision)), "high" if precision == "high" else "highest"
    code = f"""
import time, torch
from flashheat.bench.cases import random_case
from flashheat.ops import diffuse
torch.set_float32_matmul_precision("{mode}")
case = random_case(5000, 128, 128, {name})
torch.cuda.synchronize()
start = time.perf_counter()
diffuse(case.x, case.mass, case.evals, case.evecs, case.times)
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 5, "seconds"


def test_deterministic_algorithms_give_the_same_bits(precision):
    case = random_case(9001, 128, 128, dtype_of(precision))

    def results() -> list[torch.Tensor]:
        inputs = [t.detach().requires_grad_() for t in (case.x, case.mass, case.evals, case.evecs, case.times)]
        y, s = diffuse(*inputs, return_spectral=True)
        return [y, s, *torch.autograd.grad([y, s], inputs, [case.g, case.h.to(s.dtype)])]

    plain = results()
    torch.use_deterministic_algorithms(True)
    try:
        repeats = [results() for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for again in repeats for a, b in zip(again, plain, strict=True))
