"""The Triton kernel on the CPU: its arithmetic under the interpreter, and its binaries for cards that are not here."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from flashheat.ops import launch, tiles
from flashheat.ops.pointwise_triton import finish_kernel, weigh_kernel
from tests import compile_only

TESTS = Path(__file__).parent


@pytest.mark.timeout(1200)
def test_the_arithmetic_under_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(TESTS / "interpreter"), "-p", "no:cacheprovider"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=TESTS.parent)
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize("V", [0, 1, 1000, 7001, 1_000_000])
@pytest.mark.parametrize("packed", [False, True])
def test_the_chunks_cover_all_rows_within_the_workspace(V, packed):
    p = launch.cut(V, 1, 128, 128, packed, "high", launch.DeviceSize(132, True))
    assert p.n_chunks * p.rows >= V
    assert p.n_slots <= 132 * p.tile.per_sm + 1
    assert p.n_programs <= 132 * p.tile.per_sm


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize("precision", ["highest", "high", "half"])
def test_default_tiles_compile_without_spills_and_fit(precision, capability):
    tile = tiles.choose_tile(precision, 10_000, compile_only.has_wgmma(capability))
    binary = compile_only.Binary(precision, tile, capability, backward=False)
    if (precision, capability) == ("highest", 90) and metadata.version("triton") == "3.8.0":
        pytest.xfail("17 spills under triton 3.8.0 (docs/performance.md)")
    assert binary.faults(binary.compile()) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_kernels_around_cublas_compile_without_spills(capability):
    pointers = {"x_hat_ptr": "*fp32", "evals_ptr": "*fp32", "times_ptr": "*fp32", "spectral_ptr": "*fp32"}
    pointers |= {"s_ptr": "*fp32", "operand_ptr": "*bf16", "d_times_ptr": "*fp32"}
    constants = {"h_ptr": None, "C": 512, "BLOCK_R": 512, "BLOCK_C": 8}
    assert compile_only.compile_aligned(finish_kernel, capability, pointers, constants).n_spills == 0
    pointers = {"x_ptr": "*bf16", "mass_ptr": "*fp32", "y_ptr": "*bf16", "stride_x_v": "i32"}
    constants = {"stride_x_c": 1, "stride_mass_v": 1, "C": 512, "BLOCK_V": 2, "BLOCK_C": 512}
    report = compile_only.compile_aligned(weigh_kernel, capability, pointers, constants)
    assert report.n_spills == 0
    assert "ld.global.v4" in report.ptx
    assert "st.global.v4" in report.ptx


def test_the_log_of_all_compiled_tiles_is_of_this_kernel_and_table():
    lines = [json.loads(line) for line in compile_only.LOG.read_text().splitlines()]
    assert {line["fingerprint"] for line in lines} == {compile_only.fingerprint()}, "run `make test-compile`"
    for triton in ("3.6.0", "3.7.1"):
        cards = [line["card"] for line in lines if line["triton"] == triton]
        assert {card: cards.count(card) for card in cards} == {
            f"sm_{capability}": len(list(compile_only.shipped(capability))) for capability in compile_only.CARDS
        }
    assert not any(line["faults"] for line in lines)
