"""Where the time of an op or of a training step goes: a table, a trace, and the command lines of NVIDIA's own tools.

It is separate from the benchmarks because it explains one case instead of comparing many.
"""

import contextlib
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from flashheat.bench import ops
from flashheat.bench.cases import random_case
from flashheat.bench.timing import gpu_us
from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.files import make_folder, write_atomically
from flashheat.ops import diffuse

WHAT = ("op", "step")
_CALLS = 10
_KERNEL = "diffuse_kernel"

Call = Callable[[], object]


def run(
    what: str, out: str | Path, *, vertices: int, k: int, c: int, precision: str, device: str, plain: bool, proton: bool
) -> str:
    """Profile, and write `trace.json` (for chrome://tracing or ui.perfetto.dev) and `kernels.json` into `out`.

    Args:
        what: "op", one `diffuse` forward and backward; or "step", one training step of a DiffusionNet.
        out: a folder.
        vertices, k, c: V, K and C of the case.
        precision: "highest", "high" or "bf16".
        device: "cpu" or "cuda".
        plain: only make the calls, in NVTX ranges, for a profiler that watches from outside; nothing is written.
        proton: let Triton's Proton measure too, into `proton.hatchet`.

    Returns:
        A table of the kernels (on a CPU: of the operators), the files, and what to type for `ncu` and `nsys`.

    Raises:
        FlashheatError: an argument is unknown or out of range, or the folder cannot be written.
    """
    if what not in WHAT:
        raise FlashheatError(f"what to profile must be one of {', '.join(WHAT)}; it is {what!r}")
    if precision not in ops.PRECISIONS:
        raise FlashheatError(f"a precision must be one of {', '.join(ops.PRECISIONS)}; it is {precision!r}")
    for name, value in (("vertices", vertices), ("k", k), ("c", c)):
        if value < 1:
            raise FlashheatError(f"{name} must be at least 1; it is {value}")
    check_device(device)
    call = _warm_call(what, vertices, k, c, precision, device)
    if plain:
        _repeat(call, what, device)
        return f"{_CALLS} calls"
    folder = make_folder(Path(out))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        _repeat(call, what, device)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    floor = None if device == "cpu" or what == "step" else _floor(vertices, k, c, precision)
    rows = kernels(profiler.key_averages(), device, floor)
    write_atomically(folder / "kernels.json", json.dumps(rows, indent=1))
    lines = [table(rows), f"written: {folder / 'trace.json'} (open it in ui.perfetto.dev), {folder / 'kernels.json'}"]
    if proton:
        lines.append(_proton(what, vertices, k, c, precision, device, folder))
    words = f"flashheat profile {what} --vertices {vertices} --k {k} --c {c} --precision {precision} --plain"
    return "\n".join([*lines, *outside(what, words)])


def outside(what: str, words: str) -> list[str]:
    """What to type for the profilers that watch a CUDA device from outside."""
    of_kernel = f"--kernel-name regex:{_KERNEL} " if what == "op" else ""  # a step does not go through that kernel yet
    return [
        "counters of single launches, from inside the hardware, on a CUDA device:",
        f"  ncu --set full {of_kernel}--launch-skip 6 --launch-count 2 -o {what} {words}",
        "host and device on one time axis:",
        f"  nsys profile --trace cuda,nvtx,osrt -o {what} {words}",
    ]


def kernels(averages: Any, device: str, floor: dict[str, float] | None) -> list[dict[str, Any]]:
    """A row for each kernel (on a CPU each operator), the longest first.

    Args:
        averages: of torch's profiler.
        device: where it ran.
        floor: bytes, flops and least time of one launch of our kernel, where they are known.
    """
    on_cpu = device == "cpu"
    rows = []
    for event in averages:
        us = event.self_cpu_time_total if on_cpu else event.self_device_time_total
        if us <= 0 or event.is_user_annotation or (not on_cpu and event.device_type == torch.autograd.DeviceType.CPU):
            continue
        row = {"name": event.key, "calls": event.count, "us_a_call": us / event.count, "us": us}
        if floor is not None and event.key == _KERNEL:
            row |= floor | {"share_of_floor": floor["floor_us"] / row["us_a_call"]}
        rows.append(row)
    total = sum(row["us"] for row in rows)
    return sorted(({**row, "share": row["us"] / total} for row in rows), key=lambda row: -row["us"])


def table(rows: list[dict[str, Any]], n_rows: int = 20) -> str:
    """The rows as text."""
    lines = [f"{'share':>6} {'calls':>6} {'us a call':>10} {'MB':>8} {'GFLOP':>7} {'of floor':>8}  kernel"]
    for row in rows[:n_rows]:
        known = "share_of_floor" in row
        figures = (
            f"{row['bytes'] / 1e6:8.1f} {row['flops'] / 1e9:7.2f} {row['share_of_floor']:8.0%}" if known else " " * 25
        )
        lines.append(f"{row['share']:6.1%} {row['calls']:6d} {row['us_a_call']:10.2f} {figures}  {row['name'][:90]}")
    if len(rows) > n_rows:
        lines.append(f"... and {len(rows) - n_rows} more")
    return "\n".join(lines)


def _warm_call(what: str, V: int, K: int, C: int, precision: str, device: str) -> Call:
    ops.set_precision(precision)
    call = (_op if what == "op" else _step)(V, K, C, precision, device)
    for _ in range(3):
        call()
    return call


def _op(V: int, K: int, C: int, precision: str, device: str) -> Call:
    case = random_case(V, K, C, ops.PRECISIONS[precision], device=device)
    return ops.calls(diffuse, case)["both"]


def _step(V: int, K: int, C: int, precision: str, device: str) -> Call:
    """Forward, loss, backward and Adam of a four-block network on a torus of about V vertices."""
    from flashheat.mesh.primitives import torus
    from flashheat.nn import DiffusionNet
    from flashheat.operators import compute_operators

    m = max(3, round((V / 2) ** 0.5))
    mesh = torus(2 * m, m)
    operators = compute_operators(mesh, k_eig=min(K, mesh.n_verts - 1)).to(device)
    torch.manual_seed(0)
    net = DiffusionNet(in_channels=3, out_channels=8, width=C).to(device)
    optimiser = torch.optim.Adam(net.parameters())
    x = torch.from_numpy(mesh.verts).float().to(device)
    labels = torch.arange(mesh.n_verts, device=device) % 8

    def step() -> Tensor:
        optimiser.zero_grad()
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(net(x, operators).float(), labels)
        loss.backward()
        optimiser.step()
        return loss

    return step


def _repeat(call: Call, what: str, device: str) -> None:
    for _ in range(_CALLS):
        with _range(f"flashheat {what}", device):
            call()
    if device != "cpu":
        torch.cuda.synchronize()


@contextlib.contextmanager
def _range(name: str, device: str) -> Iterator[None]:
    """A named range, for torch's profiler and, on a GPU, for NVIDIA's (NVTX)."""
    with torch.profiler.record_function(name), contextlib.ExitStack() as stack:
        if device != "cpu":
            stack.enter_context(torch.cuda.nvtx.range(name))
        yield


def _floor(V: int, K: int, C: int, precision: str) -> dict[str, float]:
    """What one launch must move and multiply, and its least time at the bandwidth of a large copy on this device."""
    block = torch.empty(2**28, dtype=torch.int8, device="cuda")
    copied = torch.empty_like(block)
    bytes_a_us = 2 * block.numel() / gpu_us(lambda: copied.copy_(block))
    moved = V * (K + 2 * C) * (2 if precision == "bf16" else 4)
    return {"bytes": moved, "flops": 4.0 * V * K * C, "floor_us": moved / bytes_a_us}


def _proton(what: str, V: int, K: int, C: int, precision: str, device: str, folder: Path) -> str:
    """Measure by Proton in a process of its own, because CUPTI takes one subscriber, and torch's profiler stays it."""
    if device == "cpu" or find_spec("triton.profiler") is None:
        return "Proton was not run: it needs a CUDA device and triton"
    name = str(folder / "proton")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            pool.submit(_by_proton, name, what, V, K, C, precision, device).result()
        except (RuntimeError, BrokenProcessPool) as failure:
            return f"Proton was not run: {failure}"
    return f"written: {name}.hatchet (proton-viewer -m time/us {name}.hatchet)"


def _by_proton(name: str, what: str, V: int, K: int, C: int, precision: str, device: str) -> None:
    import triton.profiler as triton_profiler

    call = _warm_call(what, V, K, C, precision, device)
    triton_profiler.start(name)
    _repeat(call, what, device)
    triton_profiler.finalize()
