"""Step 5: mass on the one operand or on the other.

`evecs^T (mass * x)` and `(mass * evecs)^T x` are the same sum. The tile that mass is multiplied into passes through
registers, and in bf16 it is also cast to float32 and back; the other one can go from memory to the tensor cores by
shared memory alone. Here the basis is the left operand, transposed. Tensor cores of Hopper (wgmma) take the right
operand from shared memory in any case, so its detour ends there; the left one they take from registers too, and the
compiler then leaves it in registers: transposed, and as a form of wgmma that waits after each step.

Look at, in bf16: compiled for sm_90, "features" has both operands in shared memory and "basis" one in registers.
Expected: "features" is the fastest in bf16; in float32 less between the two, since tf32x3 splits both operands in
registers anyway. "Neither" weighs `x` in a kernel of its own, which writes and reads an array as large as the features,
as the five lines do.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    MASS_ON: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals times) * (evecs^T (mass * x))`, one tile K x C a program, the whole of V in its loop."""
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < V) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < V) & (c[None, :] < C), other=0.0)
        if MASS_ON == "features":
            x = (x * tl.load(mass_ptr + v, mask=v < V, other=0.0)[:, None]).to(basis.dtype)
        if MASS_ON == "basis":
            basis = (basis * tl.load(mass_ptr + v, mask=v < V, other=0.0)[:, None]).to(x.dtype)
        acc = tl.dot(tl.trans(basis), x, acc, input_precision="tf32x3")  # bf16 is multiplied as it is
    evals = tl.load(evals_ptr + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    tl.store(s_ptr + k[:, None] * C + c[None, :], s, mask=(k[:, None] < K) & (c[None, :] < C))


def projected(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, mass_on: str) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    if mass_on == "neither":
        x = mass[:, None].to(x.dtype) * x
    s = evals.new_empty(K, C)
    # Tiles of fewer than 64 rows take the older mma, whose operands always come from registers: too small for bf16 to
    # show the point. tf32x3 in tiles of 64 would give wgmma such operands, which ptxas before 13.3 may overwrite.
    block = 64 if x.dtype == torch.bfloat16 else 32
    blocks = {"BLOCK_V": 64, "BLOCK_K": block, "BLOCK_C": block, "MASS_ON": mass_on}
    grid = (triton.cdiv(K, block), triton.cdiv(C, block))
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, **blocks)
    return evecs @ s.to(evecs.dtype)


def variants() -> dict:
    """The implementations that this step compares."""
    return {f"mass on {on}": partial(projected, mass_on=on) for on in ("features", "basis", "neither")}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants(), DTYPES)
