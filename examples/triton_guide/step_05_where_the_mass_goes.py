"""Step 5: mass on the one operand or on the other.

`evecs^T (mass * x)` and `(mass * evecs)^T x` are the same sum. Mass must be multiplied into a tile that passes through
registers, so that tile cannot go from memory to the tensor cores directly, while the other one can. On `x` the tile is
V x C, on the basis it is V x K, and the basis is the transposed operand, which would be transposed in registers.

Expected: in float32, where both operands are split in registers anyway, little between the two; the third variant
weighs `x` in a kernel of its own, which writes and reads an array as large as the features, as the five lines do.
"""

from functools import partial

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    MASS_ON: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < V) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < V) & (c[None, :] < C), other=0.0)
        if MASS_ON == "features":
            x = x * tl.load(mass_ptr + v, mask=v < V, other=0.0)[:, None]
        if MASS_ON == "basis":
            basis = basis * tl.load(mass_ptr + v, mask=v < V, other=0.0)[:, None]
        acc = tl.dot(tl.trans(basis), x, acc, input_precision="tf32x3")
    evals = tl.load(evals_ptr + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    tl.store(s_ptr + k[:, None] * C + c[None, :], s, mask=(k[:, None] < K) & (c[None, :] < C))


def projected(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, mass_on: str) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    if mass_on == "neither":
        x = mass[:, None] * x
    s = x.new_empty(K, C)
    blocks = {"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32, "MASS_ON": mass_on}
    project_kernel[triton.cdiv(K, 32), triton.cdiv(C, 32)](x, mass, evals, evecs, times, s, V, K, C, **blocks)
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    return {f"mass on {on}": partial(projected, mass_on=on) for on in ("features", "basis", "neither")}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
