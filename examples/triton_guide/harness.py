"""What every step of the guide shares: a case, the truth, the errors, and on a GPU the times.

    python examples/triton_guide/step_01_five_lines.py     # one step, a table on the screen

It is separate so that a step's file shows its kernels and nothing else.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashheat.bench.cases import random_case
from flashheat.bench.timing import gpu_us
from flashheat.errors import FlashheatError
from flashheat.ops import diffuse_reference

SIZES = (1_000, 4_000, 16_000, 64_000)
K = C = 128
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
# Several times what one tf32 product, and what bf16, cost: beyond that a variant is not inexact but wrong.
LIMITS = {torch.float32: 5e-3, torch.bfloat16: 2e-2}

Variant = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def arguments(V: int, K: int, C: int, device: str, dtype: torch.dtype = torch.float32) -> Case:
    """`x, mass, evals, evecs, times` of a made-up mesh; features and basis in `dtype`."""
    case = random_case(V, K, C, dtype, device=device)
    return case.x, case.mass, case.evals, case.evecs, case.times


def relative(ours: Tensor, exact: Tensor) -> float:
    """The norm of the difference over the norm of the exact result."""
    return float((ours.double() - exact).norm() / exact.norm())


def error(run: Variant, case: Case) -> float:
    """Relative error of `y` against float64."""
    return relative(run(*case), diffuse_reference(*(t.double() for t in case)))


def call(run: Variant, case: Case) -> Callable[[], object]:
    """What is timed: `run` on the case, or the call that the variant itself makes of it.

    A variant that has a `prepare` does there what must not be timed, or goes on to a backward pass.
    """
    prepare: Callable[..., Callable[[], object]] | None = getattr(run, "prepare", None)
    return partial(run, *case) if prepare is None else prepare(*case)


def rows(
    step: str, variants: dict[str, Variant], dtypes: Sequence[torch.dtype] = (torch.float32,),
    sizes: Sequence[int] = SIZES,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each dtype, size and variant, on the GPU: correct first, then timed.

    Raises:
        FlashheatError: a variant's result is wrong.
    """
    torch.set_float32_matmul_precision("highest")
    for dtype in dtypes:
        for V in sizes:
            case = arguments(V, K, C, "cuda", dtype)
            for name, run in variants.items():
                off = error(run, case)
                if not off <= LIMITS[dtype]:
                    raise FlashheatError(f"{step}, {name}, V {V}: the error must be under {LIMITS[dtype]}: {off:.1e}")
                us = round(gpu_us(call(run, case)), 2)
                row = {"step": step, "variant": name, "V": V, "K": K, "C": C, "dtype": NAMES[dtype]}
                yield row | {"gpu_us": us, "error": off}


def show(path: str, variants: dict[str, Variant], dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
    """Print the step's table: times where there is a GPU, else the errors alone on a small mesh."""
    step = Path(path).stem
    if torch.cuda.is_available():
        for row in rows(step, variants, dtypes):
            line = f"{step}: {row['variant']:40s} {row['dtype']} V {row['V']:6d}"
            print(f"{line} {row['gpu_us']:9.1f} us, error {row['error']:.1e}", flush=True)
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("a step needs a CUDA device, or TRITON_INTERPRET=1 set before it starts: torch sees no device here")
    case = arguments(200, 32, 16, "cpu")  # float32 alone: the interpreter's products of bf16 are wrong
    for name, run in variants.items():
        print(f"{step}: {name:40s} error {error(run, case):.1e}")
    print("no CUDA device: nothing was timed")
