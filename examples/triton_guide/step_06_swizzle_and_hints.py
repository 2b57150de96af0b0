"""Step 6: the order of the tiles, and what the compiler is told of addresses.

*Swizzling* renumbers the tiles so that programs that run at the same time share operands in the cache. It is what makes
large matrix products fast. Here K x C has 16 tiles of 32 x 32, all of which run at once: there is no order to choose.

*Hints* (`tl.multiple_of`, `tl.max_contiguous`) let the compiler combine loads. It knows most of it by itself: pointers
that are divisible by 16, and sizes that are compile-time constants. A hint that is not true gives wrong results.

Look at: compiled for sm_90 the kernel has the same registers, products and widths of loads with and without hints.
Expected: nothing from either, which is why the finished kernel has neither.
"""

from functools import partial

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    GROUP: tl.constexpr, HINTS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    n_c: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    n_k: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    first = pid // (GROUP * n_c) * GROUP
    rows = tl.minimum(n_k - first, GROUP)
    k = (first + pid % (GROUP * n_c) % rows) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = (pid % (GROUP * n_c) // rows) * BLOCK_C + tl.arange(0, BLOCK_C)
    if HINTS:
        k = tl.max_contiguous(tl.multiple_of(k, BLOCK_K), BLOCK_K)
        c = tl.max_contiguous(tl.multiple_of(c, BLOCK_C), BLOCK_C)
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


def projected(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, group: int = 1, hints: bool = False
) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    grid = (triton.cdiv(K, 32) * triton.cdiv(C, 32),)
    blocks = {"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32, "GROUP": group, "HINTS": hints}
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, **blocks)
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    return {
        "in order": projected,
        "swizzled in groups of 2": partial(projected, group=2),
        "swizzled in groups of 8": partial(projected, group=8),
        "hints": partial(projected, hints=True),
    }


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
