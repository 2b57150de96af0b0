"""Makes the tile table: every candidate tile is first held to exact integers, then timed at each size.

    python -m flashheat.bench.sweep out.jsonl

Candidates are compiled and checked in parallel processes; the timings follow alone on the device.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch

from flashheat.bench.cases import Case, random_case
from flashheat.bench.timing import gpu_us
from flashheat.ops.basis import from_basis_reference, to_basis_reference
from flashheat.ops.dispatch import launcher
from flashheat.ops.tiles import Tile

SIZES = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 256_000, 1_000_000]
CANDIDATES = {
    "highest": [
        Tile(32, 32, 32, 4, 1, 1, "fp16x3", "registers"), Tile(32, 64, 32, 4, 1, 1, "fp16x3"),
        Tile(32, 64, 64, 4, 1, 1, "fp16x3"), Tile(32, 32, 32, 4, 1, 1, "bf16x6", "registers"),
        Tile(32, 64, 32, 4, 1, 1, "bf16x6"), Tile(16, 64, 32, 4, 1, 1, "bf16x6"), Tile(16, 64, 64, 4, 1, 1, "bf16x6"),
        Tile(32, 64, 64, 8, 1, 1, "bf16x6"),
    ],
    "high": [
        Tile(32, 32, 32, 4, 1, 1, "bf16x3", "registers"), Tile(32, 64, 32, 4, 1, 1, "bf16x3"),
        Tile(32, 64, 64, 4, 1, 1, "bf16x3"), Tile(64, 128, 64, 8, 1, 1, "bf16x3"),
        Tile(64, 64, 128, 8, 1, 1, "bf16x3"), Tile(64, 128, 128, 8, 1, 1, "bf16x3"),
    ],
    "half": [
        Tile(64, 32, 32, 4, 3, 1, "half", "registers"), Tile(64, 64, 32, 4, 4, 1, "half", "pipelined"),
        Tile(64, 64, 64, 4, 4, 1, "half", "pipelined"), Tile(64, 128, 64, 4, 4, 1, "half", "pipelined"),
        Tile(64, 128, 128, 8, 4, 1, "half", "pipelined"),
    ],
}  # fmt: skip


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of the features in one precision class."""
    return torch.bfloat16 if precision == "half" else torch.float32


def run_forward(case: Case, precision: str, tile: Tile | None) -> tuple[torch.Tensor | None, torch.Tensor]:
    """One forward launch."""
    c = case
    return launcher(precision).forward(c.x, c.mass, c.evals, c.evecs, c.times, c.offsets, precision, tile=tile)


def run_backward(case: Case, s: torch.Tensor, precision: str, tile: Tile | None) -> tuple[torch.Tensor | None, ...]:
    """One backward launch, for the features and the times."""
    c = case
    return launcher(precision).backward(
        c.g, None, c.mass, c.evals, c.evecs, c.times, c.offsets, s, precision,
        expand=True, d_times=True, d_evals=False, tile=tile,
    )  # fmt: skip


def check_exact(precision: str, tile: Tile, K: int = 128, C: int = 128) -> str:
    """Empty if `reduce` and `expand` are exact on small integers and repeat bitwise; otherwise what was wrong."""
    for V in (1, 63, 1000, 7001, 20011):
        case = random_case(V, K, C, dtype_of(precision), whole=True, seed=V)
        exact = case.double()
        _, s = launcher(precision).forward(
            case.x, case.mass, None, case.evecs, None, None, precision, expand=False, tile=tile
        )  # fmt: skip
        if not torch.equal(s.double(), to_basis_reference(exact.x, exact.mass, exact.evecs)):
            return f"reduce is not exact at V={V}"
        y = launcher(precision).expand(case.h.to(case.x.dtype), case.evecs, None, precision, tile=tile)
        if not torch.equal(y.double(), from_basis_reference(exact.h, exact.evecs)):
            return f"expand is not exact at V={V}"
        case = random_case(V, K, C, dtype_of(precision), seed=V)
        first, s = run_forward(case, precision, tile)
        run_backward(case, s, precision, tile)
        repeats = [run_forward(case, precision, tile)[0] for _ in range(20)]
        if first is None or any(y is None or not torch.equal(first, y) for y in repeats):
            return f"forward does not repeat bitwise at V={V}"
    return ""


def _check(candidate: tuple[str, Tile]) -> str:
    try:
        return check_exact(*candidate)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


def main(out: str) -> None:
    """Check, then time, every candidate."""
    candidates = [(precision, tile) for precision, tiles in CANDIDATES.items() for tile in tiles]
    with get_context("spawn").Pool(14) as pool:
        wrong = pool.map(_check, candidates, chunksize=1)
    for candidate, message in zip(candidates, wrong, strict=True):
        print("gate", *candidate, message or "exact", flush=True)
    exact = [candidate for candidate, message in zip(candidates, wrong, strict=True) if not message]
    with Path(out).open("w") as file:
        for V, (precision, tile), per_sm in product(SIZES, exact, (1, 2)):
            tile = replace(tile, per_sm=per_sm)
            case = random_case(V, 128, 128, dtype_of(precision))
            try:
                _, s = run_forward(case, precision, tile)
                forward = gpu_us(partial(run_forward, case, precision, tile))
                backward = gpu_us(partial(run_backward, case, s, precision, tile))
            except RuntimeError:  # more programs than fit on the device at once
                continue
            row = {"V": V, "precision": precision, "tile": list(vars(tile).values()), "forward_us": forward}
            print(json.dumps(row | {"backward_us": backward}), file=file, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
