"""Step 9: split the sum over V, so that every multiprocessor has work (split-K in the language of matrix products).

A third axis of the grid cuts the vertices into chunks. Each program sums its chunk; what remains is to add the chunks:

- by atomics, each program adds its tile to the result: short, but the order changes from run to run, and with it the
  last bits; the result must be zeroed first, which is a launch too;
- by partial sums, each program writes its own, and a second kernel adds them in a fixed order: always the same bits.

Look at: whether ten runs agree to the last bit, printed behind the table on a GPU.
Expected: both are many times faster than step 3 at V = 16,000, and the two differ little. Only one of them repeats.
The partial sums are K x C for each chunk: about as many chunks as fill the device is enough, and caps their memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evecs_ptr, out_ptr, V, chunk,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    ATOMIC: tl.constexpr,
):  # fmt: skip
    """`evecs^T (mass * x)` over the vertices of one chunk, one tile K x C a program; without a mass, `evecs^T x`."""
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(2) * chunk
    stop = tl.minimum(first + chunk, V)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(first, stop, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < stop) & (c[None, :] < C), other=0.0)
        if mass_ptr is not None:
            x = x * tl.load(mass_ptr + v, mask=v < stop, other=0.0)[:, None]
        acc = tl.dot(tl.trans(basis), x, acc, input_precision="tf32x3")
    at = k[:, None] * C + c[None, :]
    inside = (k[:, None] < K) & (c[None, :] < C)
    if ATOMIC:
        tl.atomic_add(out_ptr + at, acc, mask=inside)
    else:
        tl.store(out_ptr + tl.program_id(2) * K * C + at, acc, mask=inside)


@triton.jit
def sum_kernel(parts_ptr, x_hat_ptr, n_parts, KC, BLOCK: tl.constexpr):
    """The sum of all parts, first part first, for `BLOCK` entries of K x C."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(n_parts):
        total += tl.load(parts_ptr + part * KC + at, mask=at < KC, other=0.0)
    tl.store(x_hat_ptr + at, total, mask=at < KC)


def cut_rows(V: int, n_tiles: int) -> tuple[int, int]:
    """Vertices a chunk, in whole blocks, and the number of chunks: about two programs a multiprocessor of an H200."""
    chunk = max(64, triton.cdiv(triton.cdiv(V, max(1, 264 // n_tiles)), 64) * 64)
    return chunk, triton.cdiv(V, chunk)


def project(x: Tensor, mass: Tensor | None, evecs: Tensor, atomic: bool = False) -> Tensor:
    """The partial sums `[n_chunks, K, C]`; with atomics their sum, `[1, K, C]`."""
    (V, C), K = x.shape, evecs.shape[1]
    n_k, n_c = triton.cdiv(K, 32), triton.cdiv(C, 32)
    chunk, n_chunks = cut_rows(V, n_k * n_c)
    out = x.new_zeros(1, K, C) if atomic else x.new_empty(n_chunks, K, C)
    blocks = {"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32, "ATOMIC": atomic}
    project_kernel[(n_k, n_c, n_chunks)](x, mass, evecs, out, V, chunk, K, C, **blocks)
    return out


def by_partial_sums(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    parts = project(x, mass, evecs)
    x_hat = torch.empty_like(parts[0])
    sum_kernel[(triton.cdiv(x_hat.numel(), 256),)](parts, x_hat, len(parts), x_hat.numel(), BLOCK=256)
    return evecs @ (torch.exp(-evals[:, None] * times) * x_hat)


def by_atomics(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (x_hat,) = project(x, mass, evecs, atomic=True)
    return evecs @ (torch.exp(-evals[:, None] * times) * x_hat)


def variants() -> dict:
    """The implementations that this step compares."""
    from step_03_naive import naive

    return {"the whole of V in one loop": naive, "partial sums": by_partial_sums, "atomics": by_atomics}


if __name__ == "__main__":
    from harness import arguments, show

    show(__file__, variants())
    if torch.cuda.is_available():
        case = arguments(16_000, 128, 128, "cuda")
        for name, run in variants().items():
            first = run(*case)
            print(f"{name}: ten runs agree to the last bit: {all(torch.equal(first, run(*case)) for _ in range(9))}")
