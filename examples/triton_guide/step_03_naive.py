"""Step 3: the same idea with nothing missing, the naive fused kernel.

One program a tile of K x C, 32 x 32, 64 vertices a step, the whole of V in its loop; mass and decay fused; the decay in
float32 before any cast; `torch.matmul` for the way back. The products are "tf32x3", which tensor cores do with the
exactness of float32 (step 8).

Look at: no array as large as the features is written on the way in, and yet it is behind the five lines at every size
on an H200. 16 programs keep 16 of 132 multiprocessors busy, and each walks V / 64 steps one after the other. What is
missing is not fusion but parallelism over V: step 9.
"""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < V) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < V) & (c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + v, mask=v < V, other=0.0)
        acc = tl.dot(tl.trans(basis), x * mass[:, None], acc, input_precision="tf32x3")
    evals = tl.load(evals_ptr + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    tl.store(s_ptr + k[:, None] * C + c[None, :], s, mask=(k[:, None] < K) & (c[None, :] < C))


def naive(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    grid = (triton.cdiv(K, 32), triton.cdiv(C, 32))
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, BLOCK_V=64, BLOCK_K=32, BLOCK_C=32)
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    from step_01_five_lines import five_lines

    return {"five lines, eager": five_lines, "naive fused kernel": naive}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
