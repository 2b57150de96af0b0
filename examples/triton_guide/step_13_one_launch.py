"""Step 13: one launch with a barrier across the grid.

Three kernels are three launches, and between two of them the device drains and fills again. A *cooperative* launch
promises that all programs run at once, so they may wait for one another: each adds 1 to a counter in memory and polls
until everyone has. Then projection, finish and expansion are phases of one kernel.

Three rules, each of which hangs or corrupts when it is broken:

- no more programs than fit on the device at once: one a multiprocessor here;
- what one program writes before the barrier and another reads after it must not come from the reader's first-level
  cache: `cache_modifier=".cg"`;
- the counter must be zero at the start; our own kernel uses one that returns to zero by itself, here it is made anew.

Expected: a barrier costs about 1 us on an H200, a launch about 2 (docs/performance.md); it pays for small meshes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def grid_barrier(counter_ptr, target):
    """Wait until `target` arrivals. Release what was written before; acquire what others wrote."""
    tl.debug_barrier()  # all threads of this program have written
    tl.atomic_add(counter_ptr, 1, sem="release")
    while tl.atomic_add(counter_ptr, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def diffuse_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, parts_ptr, s_ptr, y_ptr, counter_ptr, V, chunk,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    pid, n_programs = tl.program_id(0), tl.num_programs(0)
    k, c = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_C)
    inside = (k[:, None] < K) & (c[None, :] < C)
    first = pid * chunk
    stop = tl.minimum(first + chunk, V)

    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)  # phase 1: this program's vertices
    for start in range(first, stop, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < stop) & (c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + v, mask=v < stop, other=0.0)
        acc = tl.dot(tl.trans(basis), x * mass[:, None], acc, input_precision="tf32x3")
    tl.store(parts_ptr + pid * K * C + k[:, None] * C + c[None, :], acc, mask=inside)
    grid_barrier(counter_ptr, n_programs)

    for block in range(pid, tl.cdiv(K * C, BLOCK), n_programs):  # phase 2: every n-th block of the spectrum
        at = block * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for part in range(n_programs):
            total += tl.load(parts_ptr + part * K * C + at, mask=at < K * C, other=0.0, cache_modifier=".cg")
        evals = tl.load(evals_ptr + at // C, mask=at < K * C, other=0.0)
        times = tl.load(times_ptr + at % C, mask=at < K * C, other=0.0)
        tl.store(s_ptr + at, tl.exp(-evals * times) * total, mask=at < K * C)
    grid_barrier(counter_ptr, 2 * n_programs)

    s = tl.load(s_ptr + k[:, None] * C + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    n_blocks = tl.cdiv(tl.maximum(stop - first, 0), BLOCK_V)
    for j in range(n_blocks):  # phase 3: this program's vertices again, last block first
        v = first + (n_blocks - 1 - j) * BLOCK_V + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        y = tl.dot(basis, s, input_precision="tf32x3")
        tl.store(y_ptr + v[:, None] * C + c[None, :], y, mask=(v[:, None] < stop) & (c[None, :] < C))


def one_launch(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    # Under the interpreter programs run one after the other and would wait for ever: there is one.
    n_programs = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    chunk = max(16, triton.cdiv(triton.cdiv(V, n_programs), 16) * 16)
    parts, s, y = x.new_empty(n_programs, K, C), x.new_empty(K, C), x.new_empty(V, C)
    counter = torch.zeros(1, dtype=torch.int32, device=x.device)
    block_k, block_c = (max(16, triton.next_power_of_2(n)) for n in (K, C))
    diffuse_kernel[(n_programs,)](
        x, mass, evals, evecs, times, parts, s, y, counter, V, chunk, K, C,
        BLOCK_V=16, BLOCK_K=block_k, BLOCK_C=block_c, BLOCK=256, num_warps=8, launch_cooperative_grid=x.is_cuda,
    )  # fmt: skip
    return y


def variants() -> dict:
    """The implementations that this step compares."""
    from functools import partial

    from step_11_expansion import three_kernels

    return {"three launches": partial(three_kernels, backwards=True), "one launch, two barriers": one_launch}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
