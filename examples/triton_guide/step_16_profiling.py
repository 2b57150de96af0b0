"""Step 16: profiling, to see where the time goes instead of guessing.

Four tools, from the outside in:

- `nsys`: host and device on one time axis. Small meshes wait for the host;
- `torch.profiler`: every kernel with its time, and the host beside it. `flashheat profile op` prints its table;
- Proton, Triton's own: times by the kernel's name, with less overhead, and scopes of one's own;
- `ncu`: the counters of one launch: bytes, instructions, what the warps waited for.

The floor of a kernel is what must be moved over the bandwidth, or what must be multiplied over the arithmetic,
whichever is longer; its distance from there is what can be gained at all. Clocks read inside our kernel showed that a
step of the reduction was twelve barriers long (docs/performance.md): none of these tools says that.

Look at: the table and Proton's file of ten calls of step 13, the floor, and the command lines, all printed.
"""

import importlib.util
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from harness import arguments, show
from step_13_one_launch import one_launch
from torch import Tensor

SCRIPT = "python examples/triton_guide/step_16_profiling.py"
COMMANDS = {
    "host and device on one axis": f"nsys profile --trace cuda,osrt -o one_launch {SCRIPT}",
    "all kernels by name, without a change of the code": f"proton -n one_launch {SCRIPT.removeprefix('python ')}",
    "what Proton wrote": "proton-viewer -m time/us one_launch.hatchet",
    "the counters of one launch": f"ncu --set full --kernel-name diffuse_kernel --launch-count 1 {SCRIPT}",
}


def floor_us(V: int, K: int, C: int, bytes_a_second: float = 4.24e12) -> float:
    """Each input read once and each output written once, float32, at the bandwidth of a large copy on an H200."""
    return 4 * V * (K + 2 * C) / bytes_a_second * 1e6


def by_torch(case: tuple[Tensor, ...]) -> str:
    """The table of torch's profiler for ten calls of step 13."""
    on_gpu = case[0].is_cuda
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    one_launch(*case)  # compiles
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(10):
            one_launch(*case)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=by, row_limit=8))


def by_proton(V: int, K: int, C: int, name: Path) -> Path | None:
    """The file that Proton writes of ten calls of step 13; none where it cannot run.

    In a process of its own: the driver's profiling interface takes one subscriber, and torch's profiler stays it.
    """
    if not torch.cuda.is_available() or importlib.util.find_spec("triton.profiler") is None:
        return None
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(_ten_calls, V, K, C, str(name)).result()
    return name.with_suffix(".hatchet")


def _ten_calls(V: int, K: int, C: int, name: str) -> None:
    import triton.profiler as proton

    case = arguments(V, K, C, "cuda")
    one_launch(*case)  # compiles
    proton.start(name)
    with proton.scope("ten calls"):
        for _ in range(10):
            one_launch(*case)
    proton.finalize()


def variants() -> dict:
    """The implementation that is profiled."""
    return {"one launch": one_launch}


if __name__ == "__main__":
    show(__file__, variants())
    V, K, C, device = (16_000, 128, 128, "cuda") if torch.cuda.is_available() else (200, 32, 16, "cpu")
    case = arguments(V, K, C, device)
    print(by_torch(case))
    written = by_proton(V, K, C, Path(tempfile.mkdtemp()) / "one_launch")
    print(f"Proton: {written or 'not run, it needs a CUDA device'}")
    print(f"floor at V {V}, K {K}, C {C}: {floor_us(V, K, C):.1f} us")
    for what, command in COMMANDS.items():
        print(f"{what}:\n    {command}")
