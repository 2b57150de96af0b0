"""What every step of the guide shares: a case, the truth, the errors, and on a GPU the times.

    python examples/triton_guide/step_01_five_lines.py     # one step, a table on the screen

It is separate so that a step's file shows its kernels and nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashheat.bench.cases import random_case
from flashheat.bench.timing import gpu_us
from flashheat.ops import diffuse_reference

SIZES = (1_000, 4_000, 16_000, 64_000)

Variant = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def arguments(V: int, K: int, C: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """`x, mass, evals, evecs, times` of a made-up mesh; features and basis in `dtype`."""
    case = random_case(V, K, C, dtype, device=device)
    return case.x, case.mass, case.evals, case.evecs, case.times


def error(run: Variant, case: tuple[Tensor, ...]) -> float:
    """Relative error of `y` against float64."""
    exact = diffuse_reference(*(t.double() for t in case))
    return float((run(*case).double() - exact).norm() / exact.norm())


def rows(name: str, variants: dict[str, Variant], dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
    """A row for each variant and size, K = C = 128, on the GPU."""
    found = []
    for V in SIZES:
        case = arguments(V, 128, 128, "cuda", dtype)
        for variant, run in variants.items():
            us = gpu_us(lambda run=run, case=case: run(*case))
            found.append({"step": name, "variant": variant, "V": V, "gpu_us": round(us, 1), "error": error(run, case)})
    return found


def show(path: str, variants: dict[str, Variant], dtype: torch.dtype = torch.float32) -> None:
    """Print the step's table: times where there is a GPU, else the errors alone on a small mesh."""
    name = Path(path).stem
    if not torch.cuda.is_available():
        case = arguments(500, 32, 16, "cpu", dtype)
        for variant, run in variants.items():
            print(f"{name}: {variant:40s} error {error(run, case):.1e}")
        print("no CUDA device: nothing was timed")
        return
    for row in rows(name, variants, dtype):
        print(f"{name}: {row['variant']:40s} V {row['V']:7d} {row['gpu_us']:9.1f} us, error {row['error']:.1e}")
