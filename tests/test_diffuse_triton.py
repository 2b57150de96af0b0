"""The Triton kernel on the CPU: its arithmetic under the interpreter, and its binaries for cards that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashheat.ops import launch, tiles

pytest.importorskip("triton")

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
    p = launch.cut(V, 1, 128, 128, packed, "bf16x3", launch.DeviceSize(132, True))
    assert p.n_chunks * p.rows >= V
    assert p.n_slots <= 132 * p.tile.per_sm + 1
    assert p.n_programs <= 132 * p.tile.per_sm


CARDS = {80: 166_912, 90: 232_448, 120: 101_376}
DEFAULTS = [
    (precision, dtype, tile, capability)
    for precision, dtype in (("fp16x3", "fp32"), ("bf16x3", "fp32"), ("half", "bf16"))
    for capability, shared in CARDS.items()
    for tile in dict.fromkeys(tile for _, tile in tiles.table(precision, large=shared > 160_000))
]


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("precision", "dtype", "tile", "capability"), DEFAULTS)
def test_default_tiles_compile_without_spills_and_fit(precision, dtype, tile, capability):
    from tests import compile_only

    report = compile_only.compile_kernel(tile, precision, dtype, capability=capability)
    assert report.shared <= CARDS[capability]
    if capability == 90:
        assert report.n_spills == 0
        assert report.sass_forms["wgmma"] > 0
        assert report.sass_forms["wgmma_register"] == 0  # operands that ptxas before 13.3 may overwrite
