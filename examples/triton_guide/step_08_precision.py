"""Step 8: how float32 is multiplied on tensor cores, which know no float32.

- "ieee": no tensor cores, float32 as it is: exact and slow;
- "tf32": one product of 10-bit mantissas: fast, error about 4e-4;
- "tf32x3": three tf32 products of a large and a small part: exact again, at three times the products;
- bf16x3, our own: x = a + b with a = bf16(x), b = bf16(x - a); three products, a a' + a b' + b a'. Each part has 8
  bits, so the sum has about 16: error about 6e-6, at the speed of bf16. Six products of three parts reach float32.

Look at: the errors beside the times. The accumulator is float32 in all of them; in bf16 alone it would lose everything.
"""

from functools import partial

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _dot(a, b, acc, HOW: tl.constexpr):
    if HOW == "bf16x3":
        a_large, b_large = a.to(tl.bfloat16), b.to(tl.bfloat16)
        a_small, b_small = (a - a_large.to(tl.float32)).to(tl.bfloat16), (b - b_large.to(tl.float32)).to(tl.bfloat16)
        acc = tl.dot(a_small, b_large, acc)
        acc = tl.dot(a_large, b_small, acc)
        acc = tl.dot(a_large, b_large, acc)  # the largest part last: the small ones are summed among themselves
    else:
        acc = tl.dot(a, b, acc, input_precision=HOW)
    return acc


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    HOW: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < V) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < V) & (c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + v, mask=v < V, other=0.0)
        acc = _dot(tl.trans(basis), x * mass[:, None], acc, HOW)
    evals = tl.load(evals_ptr + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    tl.store(s_ptr + k[:, None] * C + c[None, :], s, mask=(k[:, None] < K) & (c[None, :] < C))


def projected(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, how: str) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    grid = (triton.cdiv(K, 32), triton.cdiv(C, 32))
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, BLOCK_V=32, BLOCK_K=32, BLOCK_C=32, HOW=how)
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    return {how: partial(projected, how=how) for how in ("ieee", "tf32", "tf32x3", "bf16x3")}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
