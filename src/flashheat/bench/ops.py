"""`diffuse` against plain PyTorch, eager and compiled, at matched precision: correctness gate first, then times.

    flashheat bench ops --out out.jsonl --commit COMMIT

One JSON object for each case and implementation. Implementations of one case are measured in one process; another set
of processes compiles everything beforehand, side by side.
"""

import datetime
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from flashheat.bench.cases import Case, random_case
from flashheat.bench.timing import gpu_us, peak_bytes, wall_us
from flashheat.errors import FlashheatError
from flashheat.ops import diffuse, diffuse_reference

_log = logging.getLogger("flashheat")

SIZES = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000, 1_000_000]
PAIRS = [(64, 64), (64, 128), (256, 128), (128, 256), (256, 256), (512, 128), (512, 512)]
PRECISIONS = {"highest": torch.float32, "high": torch.float32, "bf16": torch.bfloat16}
LIMITS = {"highest": 1e-6, "high": 5e-4, "bf16": 4e-3}
BYTES_A_SECOND = 4.24e12  # a large copy on an H200

Run = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One case: `sizes` packs meshes, else one mesh of `V` vertices."""

    V: int
    K: int
    C: int
    precision: str
    sizes: tuple[int, ...] | None = None
    passes: tuple[str, ...] = ("forward", "both")
    impls: tuple[str, ...] = ("flashheat", "eager", "compile")

    def case(self) -> Case:
        """The arguments, on the current device."""
        sizes = None if self.sizes is None else list(self.sizes)
        return random_case(self.V, self.K, self.C, PRECISIONS[self.precision], sizes=sizes)


def rows() -> list[Row]:
    """The main table, some other numbers of columns, and a ragged batch."""
    rng = torch.Generator().manual_seed(0)
    ragged = tuple(torch.randint(500, 8001, (64,), generator=rng).tolist())
    main = [Row(V, 128, 128, p, impls=impls_at(V)) for p in PRECISIONS for V in SIZES]
    pairs = [
        Row(V, K, C, p, passes=("forward",), impls=("flashheat", "eager"))
        for p in PRECISIONS
        for K, C in PAIRS
        for V in (2_000, 16_000, 128_000)
    ]
    batch = [
        Row(sum(ragged), 128, 128, p, ragged, ("forward",), ("flashheat", "graphed loop", "padded")) for p in PRECISIONS
    ]
    return main + pairs + batch


def impls_at(V: int) -> tuple[str, ...]:
    """All implementations at three sizes; to tune takes minutes, so without max-autotune at the others."""
    return ("flashheat", "eager", "compile", *(("max-autotune",) if V in (4_000, 16_000, 64_000) else ()))


def eager(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: None = None) -> Tensor:
    """The five lines of PyTorch, in the dtype of the features."""
    s = torch.exp(-evals[:, None] * times) * (evecs.mT @ (x * mass[:, None].to(x.dtype)))
    return evecs @ s.to(evecs.dtype)


def loop(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """`eager` for each mesh of a packed batch."""
    parts = zip(x.split(sizes), mass.split(sizes), evals, evecs.split(sizes), strict=True)
    return torch.cat([eager(*part, times) for part in parts])


def padded(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A batch padded to its largest mesh, padding counted in."""
    x, mass, evecs = (torch.nn.utils.rnn.pad_sequence(t.split(sizes), batch_first=True) for t in (x, mass, evecs))
    s = torch.exp(-evals[..., None] * times) * (evecs.mT @ (x * mass[..., None].to(x.dtype)))
    return evecs @ s.to(evecs.dtype)


def implementation(impl: str, row: Row) -> Run:
    """What runs a case, of the arguments of `diffuse`."""
    if impl in ("compile", "max-autotune"):
        torch._dynamo.reset()
        mode = "max-autotune-no-cudagraphs" if impl == "max-autotune" else None
        return torch.compile(eager, dynamic=False, mode=mode)
    if impl == "flashheat":
        return diffuse
    many = {"graphed loop": loop, "padded": padded}.get(impl)
    if many is None:
        return eager
    sizes = row.sizes or (row.V,)
    return lambda x, mass, evals, evecs, times, offsets: many(x, mass, evals, evecs, times, sizes)


def calls(run: Run, case: Case) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """The passes of one implementation, as calls without arguments; `both` gives the derivatives."""
    x, times = case.x.detach().requires_grad_(), case.times.detach().requires_grad_()

    def both() -> tuple[Tensor, ...]:
        y = run(x, case.mass, case.evals, case.evecs, times, case.offsets)
        return torch.autograd.grad(y, [x, times], case.g)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (run(case.x, case.mass, case.evals, case.evecs, case.times, case.offsets),)

    return {"forward": forward, "both": both}


def set_precision(precision: str) -> None:
    """Let float32 products of PyTorch and of flashheat use reduced precision where the class says so."""
    torch.set_float32_matmul_precision("high" if precision == "high" else "highest")


def measure(row: Row) -> list[dict[str, Any]]:
    """All implementations and passes of one case.

    Raises:
        AssertionError: flashheat is less accurate than its class allows.
    """
    case, found = row.case(), []
    exact = {name: [t.float() for t in call()] for name, call in calls(diffuse_reference, case.double()).items()}
    set_precision(row.precision)
    errors: dict[tuple[str, str], float] = {}
    for impl in (*row.impls[1:], row.impls[0]):  # flashheat last: its gate needs the others' errors
        passes = calls(implementation(impl, row), case)
        for name in row.passes:
            call = passes[name]
            if impl != "padded":
                errors[impl, name] = max(relative(a, b) for a, b in zip(call(), exact[name], strict=True))
            if impl == "flashheat":
                limit = max(2 * errors.get(("eager", name), 0.0), LIMITS[row.precision])
                assert errors[impl, name] <= limit, f"{row} {name}: error {errors[impl, name]:.1e} > {limit:.1e}"
            found.append(
                {
                    "bench": "ops", "pass": name, "V": row.V, "K": row.K, "C": row.C, "B": len(row.sizes or (0,)),
                    "dtype": "bf16" if row.precision == "bf16" else "fp32", "precision": row.precision, "impl": impl,
                    "gpu_us": round(gpu_us(call), 2), "wall_us": round(wall_us(call), 1),
                    "peak_bytes": peak_bytes(call),
                    "error": errors.get((impl, name)), "floor_us": round(floor_us(row, name), 2),
                }
            )  # fmt: skip
    return found


def relative(a: Tensor, b: Tensor) -> float:
    """`|a - b| / |b|` in float64."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def floor_us(row: Row, name: str) -> float:
    """Each input read once and each output written once, over the bandwidth of a large copy."""
    n_bytes = 2 if row.precision == "bf16" else 4
    return row.V * (row.K + row.C * (4 if name == "both" else 2)) * n_bytes / BYTES_A_SECOND * 1e6


def warm(row: Row) -> None:
    """Compile what a case needs, for the caches on disk."""
    set_precision(row.precision)
    case = row.case()
    for impl in row.impls:
        passes = calls(implementation(impl, row), case)
        for name in row.passes:
            passes[name]()


def run(out: str | Path, commit: str, main_only: bool = False) -> None:
    """Compile everything in parallel, then measure row by row into a file of JSON lines.

    Raises:
        FlashheatError: there is no CUDA device, or flashheat was less accurate than its class allows (the row is left
            out, the others are written).
    """
    if not torch.cuda.is_available():
        raise FlashheatError("the benchmark needs a CUDA device: torch sees none here")
    todo = [row for row in rows() if not main_only or row.sizes is not None or row.K == row.C == 128]
    with get_context("spawn").Pool(14) as pool:
        pool.map(warm, [row for row in todo if row.V <= 256_000], chunksize=1)
    about = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    wrong, start = [], time.monotonic()
    with Path(out).open("w") as file:
        for n, row in enumerate(todo, 1):
            try:
                found = measure(row)
            except AssertionError as error:
                wrong.append(str(error))
                continue
            for line in found:
                print(json.dumps(line | about), file=file, flush=True)
            left = (time.monotonic() - start) / n * (len(todo) - n)
            _log.info("%d/%d: V %d, K %d, C %d, %s; about %.0f s left", n, len(todo), *_columns(row), left)
    if wrong:
        raise FlashheatError("; ".join(wrong))


def _columns(row: Row) -> tuple[int, int, int, str]:
    return row.V, row.K, row.C, row.precision
