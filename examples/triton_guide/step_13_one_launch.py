"""Step 13: one launch with a barrier across the grid.

Three kernels are three launches, and between two of them the device drains and fills again. A *cooperative* launch
promises that all programs run at once, so they may wait for one another: each adds to a counter in memory and polls
until everyone has. Then projection, finish and expansion are phases of one kernel.

Three rules, each of which hangs or corrupts when it is broken:

- no more programs than fit on the device at once: one a multiprocessor here. A program takes every n-th piece of work,
  so any number of programs does all of it; under the interpreter, where programs run one after the other and would wait
  for ever, there is one;
- what one program writes before the barrier and another reads after it must not come from the reader's first-level
  cache: `cache_modifier=".cg"`;
- the counter must be ready for the next launch without a launch to reset it: its top bit flips when all have come.

Expected: a barrier costs about 1 us on an H200 and a cooperative launch 1 to 2 more than a plain one
(docs/performance.md), so what is saved is less than two launches; it pays for small meshes.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def grid_barrier(counter_ptr):
    """Wait for every program. Program 0 adds what, with a 1 from each other, comes to 2^31: the top bit alone."""
    tl.debug_barrier()  # all threads of this program have written
    n = tl.num_programs(0)
    step = tl.where(tl.program_id(0) == 0, -2147483648 - (n - 1), 1)
    old = tl.atomic_add(counter_ptr, step, sem="release")
    while (tl.atomic_add(counter_ptr, 0, sem="acquire") ^ old) >= 0:  # the top bit is as it was
        pass
    tl.debug_barrier()


@triton.jit
def diffuse_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, parts_ptr, s_ptr, y_ptr, counter_ptr, V, chunk, n_chunks,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr, PARTS_A_STEP: tl.constexpr,
):  # fmt: skip
    """All of `diffuse`; a piece of work is a chunk of vertices and a block of channels, with the whole basis."""
    pid, n_programs = tl.program_id(0), tl.num_programs(0)
    n_c: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    k = tl.arange(0, BLOCK_K)

    for piece in range(pid, n_chunks * n_c, n_programs):  # phase 1: partial sums
        c = piece % n_c * BLOCK_C + tl.arange(0, BLOCK_C)
        first = piece // n_c * chunk
        stop = tl.minimum(first + chunk, V)
        # Transposed, so that the tile has 32 rows: from 64 on tf32x3 would take the risky wgmma of step 7.
        acc = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
        for start in range(first, stop, BLOCK_V):
            v = start + tl.arange(0, BLOCK_V)
            in_v = v[:, None] < stop
            basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=in_v & (k[None, :] < K), other=0.0)
            x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=in_v & (c[None, :] < C), other=0.0)
            mass = tl.load(mass_ptr + v, mask=v < stop, other=0.0)
            acc = tl.dot(tl.trans(x * mass[:, None]), basis, acc, input_precision="tf32x3")
        at = parts_ptr + piece // n_c * K * C + k[:, None] * C + c[None, :]
        tl.store(at, tl.trans(acc), mask=(k[:, None] < K) & (c[None, :] < C))
    grid_barrier(counter_ptr)

    for block in range(pid, tl.cdiv(K * C, BLOCK), n_programs):  # phase 2: sum and decay
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < K * C
        sums = tl.zeros((PARTS_A_STEP, BLOCK), tl.float32)
        for first in range(0, n_chunks, PARTS_A_STEP):
            part = first + tl.arange(0, PARTS_A_STEP)
            mask = (part[:, None] < n_chunks) & inside[None, :]
            where = parts_ptr + part[:, None] * (K * C) + at[None, :]
            sums += tl.load(where, mask=mask, other=0.0, cache_modifier=".cg")
        evals = tl.load(evals_ptr + at // C, mask=inside, other=0.0)
        times = tl.load(times_ptr + at % C, mask=inside, other=0.0)
        tl.store(s_ptr + at, tl.exp(-evals * times) * tl.sum(sums, 0), mask=inside)
    grid_barrier(counter_ptr)

    for piece in range(pid, n_chunks * n_c, n_programs):  # phase 3: the same vertices again, last block first
        c = piece % n_c * BLOCK_C + tl.arange(0, BLOCK_C)
        first = piece // n_c * chunk
        stop = tl.minimum(first + chunk, V)
        inside = (k[:, None] < K) & (c[None, :] < C)
        s = tl.load(s_ptr + k[:, None] * C + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
        n_blocks = tl.cdiv(stop - first, BLOCK_V)
        for j in range(n_blocks):
            v = first + (n_blocks - 1 - j) * BLOCK_V + tl.arange(0, BLOCK_V)
            in_v = v[:, None] < stop
            basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=in_v & (k[None, :] < K), other=0.0)
            y = tl.dot(basis, s, input_precision="tf32x3")
            tl.store(y_ptr + v[:, None] * C + c[None, :], y, mask=in_v & (c[None, :] < C))


@lru_cache
def counter(device: torch.device) -> Tensor:
    """One for all launches of a device, which must therefore follow one another on one stream."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def one_launch(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    n_sms = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    n_c = triton.cdiv(C, 32)
    chunk = triton.cdiv(triton.cdiv(V, max(1, n_sms // n_c)), 32) * 32
    n_chunks = triton.cdiv(V, chunk)
    parts, s, y = x.new_empty(n_chunks, K, C), x.new_empty(K, C), x.new_empty(V, C)
    blocks = {"BLOCK_V": 32, "BLOCK_K": max(16, triton.next_power_of_2(K)), "BLOCK_C": 32, "BLOCK": 128}
    diffuse_kernel[(min(n_sms, n_chunks * n_c),)](
        x, mass, evals, evecs, times, parts, s, y, counter(x.device), V, chunk, n_chunks, K, C,
        **blocks, PARTS_A_STEP=8, launch_cooperative_grid=x.is_cuda,
    )  # fmt: skip
    return y


def variants() -> dict:
    """The implementations that this step compares."""
    from step_11_expansion import three_kernels

    return {"three launches": three_kernels, "one launch, two barriers": one_launch}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
