"""`diffuse` against plain PyTorch, eager and compiled, at matched precision: correctness gate first, then times.

    flashheat bench ops --out out.jsonl --commit COMMIT

One JSON object for each case, pass and implementation. Implementations of one case are measured in one process; another
set of processes compiles everything beforehand, side by side.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.cuda import CUDAGraph

from flashheat.bench import peers
from flashheat.bench.about import about
from flashheat.bench.cases import Case, random_case
from flashheat.bench.figures import read_rows
from flashheat.bench.timing import capture, peak_bytes, replayed_us, require_cuda, wall_us
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.ops import diffuse, diffuse_reference
from flashheat.ops.dispatch import CUBLAS, path_of

_log = logging.getLogger("flashheat")

SIZES = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000, 1_000_000]
COLUMNS = (64, 128, 256, 512)
PRECISIONS = {"highest": torch.float32, "high": torch.float32, "bf16": torch.bfloat16}
LIMITS = {"highest": 1e-6, "high": 5e-4, "bf16": 4e-3}
BYTES_A_SECOND = 4.24e12  # a large copy on an H200

Run = Callable[..., Any]
Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Row:
    """One case: `sizes` packs meshes, else one mesh of `V` vertices."""

    V: int
    K: int
    C: int
    precision: str
    sizes: tuple[int, ...] | None = None
    passes: tuple[str, ...] = ("forward", "backward", "both")
    impls: tuple[str, ...] = ("flashheat", "eager", "compile")

    @property
    def n_meshes(self) -> int:
        """B of the row."""
        return 1 if self.sizes is None else len(self.sizes)

    def case(self) -> Case:
        """The arguments, on the current device."""
        sizes = None if self.sizes is None else list(self.sizes)
        return random_case(self.V, self.K, self.C, PRECISIONS[self.precision], sizes=sizes)


def main_rows() -> list[Row]:
    """K = C = 128 at every size; max-autotune, which takes minutes, at three of them."""
    tuned = {4_000, 16_000, 64_000}
    impls = ("flashheat", "eager", "compile")
    return [
        Row(V, 128, 128, p, impls=(*impls, "max-autotune") if V in tuned else impls) for p in PRECISIONS for V in SIZES
    ]


def column_rows() -> list[Row]:
    """Every other pair of K and C at three sizes."""
    pairs = [pair for pair in product(COLUMNS, COLUMNS) if pair != (128, 128)]
    return [Row(V, K, C, p) for p in PRECISIONS for K, C in pairs for V in (2_000, 16_000, 128_000)]


def ragged_rows() -> list[Row]:
    """64 meshes of 500 to 8,000 vertices."""
    rng = torch.Generator().manual_seed(0)
    sizes = tuple(torch.randint(500, 8001, (64,), generator=rng).tolist())
    impls = ("flashheat", "graphed loop", "padded")
    return [
        Row(sum(sizes), 128, 128, p, sizes, ("forward",), (*impls, "grouped_mm") if p == "bf16" else impls)
        for p in PRECISIONS
    ]


ROWS = {"main": main_rows, "columns": column_rows, "ragged": ragged_rows}


def implementation(impl: str, case: Case, sizes: tuple[int, ...] | None) -> Run:
    """What runs a case, of the arguments of `diffuse`; what need not be done at each call is done here."""
    if impl in ("compile", "max-autotune"):
        torch._dynamo.reset()
        mode = "max-autotune-no-cudagraphs" if impl == "max-autotune" else None
        return torch.compile(peers.eager, dynamic=False, mode=mode)
    if impl == "graphed loop" and sizes is not None:
        return lambda x, mass, evals, evecs, times, offsets: peers.loop(x, mass, evals, evecs, times, sizes)
    if impl == "padded" and sizes is not None:
        mass, evecs = peers.pad(case.mass, sizes), peers.pad(case.evecs, sizes)
        return lambda x, _mass, evals, _evecs, times, offsets: peers.padded(x, mass, evals, evecs, times, sizes)
    of: dict[str, Run] = {"flashheat": diffuse, "eager": peers.eager, "grouped_mm": peers.grouped}
    return of[impl]


def calls(run: Run, case: Case) -> dict[str, Call]:
    """The passes of one implementation, as calls without arguments; `backward` and `both` give the derivatives."""
    x, times = case.x.detach().requires_grad_(), case.times.detach().requires_grad_()
    kept: list[Tensor] = []

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (run(case.x, case.mass, case.evals, case.evecs, case.times, case.offsets),)

    def both() -> tuple[Tensor, ...]:
        y = run(x, case.mass, case.evals, case.evecs, times, case.offsets)
        return torch.autograd.grad(y, [x, times], case.g)

    def backward() -> tuple[Tensor, ...]:  # of a forward pass on the stream of the first call, which a capture needs
        if not kept:
            kept.append(run(x, case.mass, case.evals, case.evecs, times, case.offsets))
        return torch.autograd.grad(kept[0], [x, times], case.g, retain_graph=True)

    return {"forward": forward, "backward": backward, "both": both}


def set_precision(precision: str) -> None:
    """Let float32 products of PyTorch and of flashheat use reduced precision where the class says so."""
    torch.set_float32_matmul_precision("high" if precision == "high" else "highest")


def measure(row: Row) -> list[dict[str, Any]]:
    """All implementations and passes of one case.

    Raises:
        AssertionError: flashheat is less accurate than its class allows.
    """
    case = row.case()
    found: list[dict[str, Any]] = []
    exact = {name: [t.float() for t in call()] for name, call in calls(diffuse_reference, case.double()).items()}
    set_precision(row.precision)
    errors: dict[tuple[str, str], float] = {}
    graphs: dict[str, list[CUDAGraph]] = {name: [] for name in row.passes}
    kept: list[Call] = []  # what the graphs read and write
    for impl in (*row.impls[1:], row.impls[0]):  # flashheat last: its gate needs the others' errors
        for name in row.passes:
            run = implementation(impl, case, row.sizes)
            with _settings(impl, name):
                errors[impl, name] = error_of(calls(run, case)[name](), exact[name], row.sizes)
                if impl == "flashheat":
                    limit = max(2 * errors.get(("eager", name), 0.0), LIMITS[row.precision])
                    assert errors[impl, name] <= limit, f"{row} {name}: error {errors[impl, name]:.1e} > {limit:.1e}"
                call = calls(run, case)[name]
                graphs[name].append(capture(call))
                kept.append(call)
                found.append(
                    {
                        "bench": "ops", "pass": name, "V": row.V, "K": row.K, "C": row.C, "B": row.n_meshes,
                        "dtype": "bf16" if row.precision == "bf16" else "fp32", "precision": row.precision,
                        "impl": impl, "path": path(case) if impl == "flashheat" else "PyTorch",
                        "wall_us": round(wall_us(calls(run, case)[name]), 1),
                        "peak_bytes": peak_bytes(calls(run, case)[name]),
                        "error": errors[impl, name], "floor_us": round(floor_us(row, name), 2),
                    }
                )  # fmt: skip
    for name in row.passes:
        lines = [line for line in found if line["pass"] == name]
        for line, us in zip(lines, replayed_us(graphs[name]), strict=True):
            line["gpu_us"] = round(us, 2)
    return found


def path(case: Case) -> str:
    """Which path flashheat takes: its kernel or, where those are faster, the products of cuBLAS."""
    taken = path_of(case.evecs, case.x, case.offsets)
    return "PyTorch" if taken is None else "cuBLAS" if taken == CUBLAS else "kernel"


@contextmanager
def _settings(impl: str, name: str) -> Iterator[None]:
    """`backward` repeats one compiled backward pass, which may not reuse what it was given for that; max-autotune
    chooses here, where nothing else runs."""
    with ExitStack() as stack:
        if impl in ("compile", "max-autotune") and name == "backward":
            from torch._functorch import config

            stack.enter_context(config.patch(donated_buffer=False))
        if impl == "max-autotune":
            from torch._inductor import config as inductor

            stack.enter_context(inductor.patch(autotune_local_cache=False, fx_graph_cache=False))
        yield


def updated(old: list[dict[str, Any]], row: Row, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with those of one case replaced, all implementations and passes together: they were measured so."""
    case = {"bench": "ops", "V": row.V, "K": row.K, "C": row.C, "B": row.n_meshes, "precision": row.precision}
    return [line for line in old if any(line[name] != value for name, value in case.items())] + new


def error_of(results: Sequence[Tensor], exact: Sequence[Tensor], sizes: tuple[int, ...] | None) -> float:
    """The largest relative error of what one pass gives; what stays padded counts without the padding."""
    packed = [peers.unpad(t, sizes) if sizes and t.ndim == 3 else t for t in results]
    return max(relative(a, b) for a, b in zip(packed, exact, strict=True))


def relative(a: Tensor, b: Tensor) -> float:
    """`|a - b| / |b|` in float64."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def floor_us(row: Row, name: str) -> float:
    """Each input read once and each output written once, over the bandwidth of a large copy."""
    n_bytes = 2 if row.precision == "bf16" else 4
    n_columns = row.K + row.C * (4 if name == "both" else 2)
    return row.V * n_columns * n_bytes / BYTES_A_SECOND * 1e6


def warm(row: Row) -> None:
    """Compile what a case needs, for the caches on disk."""
    set_precision(row.precision)
    case = row.case()
    for impl in row.impls:
        for name in row.passes:
            run = implementation(impl, case, row.sizes)
            with _settings(impl, name):
                calls(run, case)[name]()


def run(out: str | Path, commit: str, parts: Sequence[str], precisions: Sequence[str]) -> None:
    """Compile everything in parallel, then measure row by row into a file of JSON lines.

    Args:
        out: the file; cases that are measured replace their older lines, all other lines stay.
        commit: written into every line.
        parts: which of `ROWS` to measure.
        precisions: which of `PRECISIONS`.

    Raises:
        FlashheatError: a part or precision is unknown, there is no CUDA device, or flashheat was less accurate than its
            class allows (the case then has no lines, the others are written).
    """
    for what, words, known in (("part", parts, ROWS), ("precision", precisions, PRECISIONS)):
        for word in words:
            if word not in known:
                raise FlashheatError(f"a {what} of the benchmark must be one of {', '.join(known)}; it is {word!r}")
    require_cuda("the benchmark")
    lines = read_rows(out) if Path(out).exists() and Path(out).stat().st_size else []
    _write(out, lines)  # a place that cannot be written is told before anything is measured
    todo = [row for part in parts for row in ROWS[part]() if row.precision in precisions]
    with get_context("spawn").Pool(14) as pool:
        pool.map(warm, [row for row in todo if row.V <= 256_000], chunksize=1)
    wrong, start = [], time.monotonic()
    for n, row in enumerate(todo, 1):
        try:
            found = [line | about(commit) for line in measure(row)]
        except AssertionError as error:
            wrong.append(str(error))
            found = []
        lines = updated(lines, row, found)
        _write(out, lines)
        left = (time.monotonic() - start) / n * (len(todo) - n)
        case = f"V {row.V}, K {row.K}, C {row.C}, {row.precision}"
        _log.info("%d/%d: %s; about %.0f s left", n, len(todo), case, left)
    if wrong:
        raise FlashheatError("; ".join(wrong))


def _write(out: str | Path, lines: list[dict[str, Any]]) -> None:
    write_atomically(Path(out), "".join(json.dumps(line) + "\n" for line in lines))
