"""Step 16: profiling, to see where the time goes instead of guessing.

Four tools, from the outside in:

- `torch.profiler`: every kernel with its time, and the host beside it. `flashheat profile op` prints its table;
- Proton, Triton's own: the same by the kernel's name, with less overhead;
- `nsys`: host and device on one time axis. Small meshes wait for the host;
- `ncu`: the counters of one launch: bytes, instructions, what the warps waited for.

The floor of a kernel is what must be moved over the bandwidth, or what must be multiplied over the arithmetic,
whichever is longer; its distance from there is what can be gained at all. Clocks read inside our kernel showed that a
step of the reduction was twelve barriers long (docs/performance.md): none of these tools says that.
"""

import torch
from step_13_one_launch import one_launch
from torch import Tensor


def floor_us(V: int, K: int, C: int, bytes_a_second: float = 4.24e12) -> float:
    """Each input read once and each output written once, float32, at the bandwidth of a large copy on an H200."""
    return 4 * V * (K + 2 * C) / bytes_a_second * 1e6


def profiled(case: tuple[Tensor, ...]) -> str:
    """The table of torch's profiler for ten calls of step 13."""
    on_gpu = case[0].is_cuda
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    one_launch(*case)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(10):
            one_launch(*case)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=by, row_limit=8))


def variants() -> dict:
    """The implementation that is profiled."""
    return {"one launch": one_launch}


if __name__ == "__main__":
    from harness import arguments

    device = "cuda" if torch.cuda.is_available() else "cpu"
    V, K, C = (16_000, 128, 128) if device == "cuda" else (500, 32, 16)
    print(profiled(arguments(V, K, C, device)))
    print(f"floor at V {V}, K {K}, C {C}: {floor_us(V, K, C):.1f} us")
    print("ncu --set full --kernel-name diffuse_kernel python examples/triton_guide/step_16_profiling.py")
    print("nsys profile --trace cuda,nvtx,osrt python examples/triton_guide/step_16_profiling.py")
