"""Step 8: how float32 is multiplied on tensor cores, which know no float32.

- "ieee": no tensor cores, float32 as it is: exact and slow;
- "tf32": one product of numbers with 10 bits behind the point. Triton cuts the others off, where cuBLAS rounds, so all
  errors have one sign;
- "tf32x3": three tf32 products of a large and a small part: exact again, at three times the products;
- bf16x3, our own: x = a + b with a = bf16(x), b = bf16(x - a); three products, a a' + a b' + b a'. Each part has 8
  bits, so the sum has about 16, at the speed of bf16. Six products of three parts reach float32.

Look at: the errors beside the times. `error_of_operands` has them without a GPU, by rounding in plain PyTorch; the
interpreter multiplies float32 as it is whatever is asked for, and its products of bf16 are wrong. The accumulator is
float32 in all variants; `error_of_accumulator` shows what one in half precision would cost.

Expected: bf16x3 beside tf32x3 is the better bargain where an error of 1e-5 will do. Measured: not so. The tensor core
cuts its sums off, so one sum over the whole of V loses more the longer it is; the guide says what our kernel does.
"""

from functools import partial

import torch
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
        acc = tl.dot(a_large, b_large, acc)
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


def _parts(a: Tensor, how: str) -> list[Tensor]:
    """The numbers that tensor cores would multiply in place of `a`, largest first, in float64."""
    parts = []
    for _ in range(3 if how == "bf16x6" else 2 if how.endswith("x3") else 1):
        if how.startswith("bf16"):
            part = a.bfloat16().float()
        else:
            half = 0x1000 if how == "tf32, rounded" else 0
            part = ((a.view(torch.int32) + half) & ~0x1FFF).view(torch.float32)
        parts.append(part.double())
        a = a - part
    return parts


def error_of_operands(a: Tensor, b: Tensor, how: str) -> float:
    """Error of `a^T b` that comes from the operands alone: their parts are multiplied and added in float64."""
    exact = a.double().T @ b.double()
    left, right = _parts(a, how), _parts(b, how)
    terms = [p.T @ q for i, p in enumerate(left) for j, q in enumerate(right) if i + j < len(left)]
    return float((sum(terms) - exact).norm() / exact.norm())


def error_of_accumulator(a: Tensor, b: Tensor, dtype: torch.dtype, block_v: int = 32) -> float:
    """Error of `a^T b` where the sum is rounded to `dtype` after each block of rows, as an accumulator would be."""
    exact = a.double().T @ b.double()
    total = torch.zeros_like(exact)
    for a_block, b_block in zip(a.double().split(block_v), b.double().split(block_v), strict=True):
        total = (total + a_block.T @ b_block).to(dtype).double()
    return float((total - exact).norm() / exact.norm())


def variants() -> dict:
    """The implementations that this step compares."""
    return {how: partial(projected, how=how) for how in ("ieee", "tf32", "tf32x3", "bf16x3")}


if __name__ == "__main__":
    from harness import show

    exact_here = {name: run for name, run in variants().items() if name != "bf16x3" or torch.cuda.is_available()}
    show(__file__, exact_here)
    torch.manual_seed(0)
    basis, features = torch.randn(4000, 64), torch.randn(4000, 64)
    for how in ("bf16", "tf32", "tf32, rounded", "bf16x3", "tf32x3", "bf16x6"):
        print(f"operands as {how:14s} error {error_of_operands(basis, features, how):.1e}")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        print(f"accumulator in {dtype}: error {error_of_accumulator(basis, features, dtype):.1e}")
