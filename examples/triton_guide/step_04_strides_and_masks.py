"""Step 4: pointers, strides and masks, so that one kernel serves every layout without a copy.

A basis may be stored row by row (`[V, K]` as PyTorch makes it), column by column (as eigensolvers return it), or be the
first columns of a larger one (`evecs[:, :K]`). All three are the same kernel with other strides: the address of
`evecs[v, k]` is `pointer + v * stride_v + k * stride_k`. Masks make odd V, K and C safe, and `other=0.0` makes what is
outside count as zero in the sum: masked lanes of a load hold anything unless it is said what.

Look at: the same result for the three layouts; the columns beyond a truncated view are NaN and do not matter. A layout
is made before the clock starts. Neighbouring threads should read neighbouring addresses; which axis that is depends on
the layout, and the compiler knows it where a stride equals 1 when the kernel is compiled: Triton makes an integer
argument that is 1 a constant, and notes which ones are divisible by 16. Compiled for sm_90, the features are copied 16
bytes at a time only where their stride *and* C are such multiples, since a mask may end anywhere else.

Expected: a truncated view costs nothing. Column by column the loads are as wide, along the other axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V, K, C,
    stride_x_v, stride_x_c, stride_evecs_v, stride_evecs_k,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        v = (start + tl.arange(0, BLOCK_V)).to(tl.int64)  # V * K may be beyond 2^31
        at_basis = evecs_ptr + v[:, None] * stride_evecs_v + k[None, :] * stride_evecs_k
        basis = tl.load(at_basis, mask=(v[:, None] < V) & (k[None, :] < K), other=0.0)
        at_x = x_ptr + v[:, None] * stride_x_v + c[None, :] * stride_x_c
        x = tl.load(at_x, mask=(v[:, None] < V) & (c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + v, mask=v < V, other=0.0)
        acc = tl.dot(tl.trans(basis), x * mass[:, None], acc, input_precision="tf32x3")
    evals = tl.load(evals_ptr + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    tl.store(s_ptr + k[:, None] * C + c[None, :], s, mask=(k[:, None] < K) & (c[None, :] < C))


def strided(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    grid = (triton.cdiv(K, 32), triton.cdiv(C, 32))
    strides = (*x.stride(), *evecs.stride())
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, *strides, BLOCK_V=64, BLOCK_K=32, BLOCK_C=32)
    return evecs @ s


def as_it_is(evecs: Tensor) -> Tensor:
    return evecs


def by_columns(evecs: Tensor) -> Tensor:
    return evecs.T.contiguous().T


def truncated(evecs: Tensor) -> Tensor:
    """The first columns of a wider basis; what is beyond must not be read."""
    V, K = evecs.shape
    wider = evecs.new_full((V, K + 32), float("nan"))
    wider[:, :K] = evecs
    return wider[:, :K]


@dataclass(frozen=True)
class InLayout:
    """`strided` on a basis that is laid out beforehand."""

    layout: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        return strided(x, mass, evals, self.layout(evecs), times)

    def prepare(self, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Callable[[], Tensor]:
        """What the harness times: the call without the copy that makes the layout."""
        return partial(strided, x, mass, evals, self.layout(evecs), times)


def variants() -> dict:
    """The implementations that this step compares."""
    layouts = {"row by row": as_it_is, "column by column": by_columns, "a truncated view": truncated}
    return {name: InLayout(layout) for name, layout in layouts.items()}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
