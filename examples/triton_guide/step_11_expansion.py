"""Steps 10 and 11: the decay in the second kernel, and the way back as a kernel of our own.

The expansion `y = evecs s` has no sum over V, so it needs no split: a program owns some vertices. Two things are gained
over `torch.matmul`: the spectrum, K x C, stays on chip while a program walks over its vertices; and the walk goes
*backwards*, from the last vertex to the first, because what the projection read last is still in the cache.

Expected: little for small meshes, where launches cost more than bytes; from where the basis is larger than the cache
(50 MB on an H200, V = 100,000 at K = 128) the backward walk saves a part of one reading of the basis.
"""

from functools import partial

import triton
import triton.language as tl
from step_09_split_over_v import _chunks, finish_kernel, project_kernel
from torch import Tensor


@triton.jit
def expand_kernel(
    evecs_ptr, s_ptr, y_ptr, V, chunk,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BACKWARDS: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    s = tl.load(s_ptr + k[:, None] * C + c[None, :], mask=(k[:, None] < K) & (c[None, :] < C), other=0.0)
    first = tl.program_id(0) * chunk
    stop = tl.minimum(first + chunk, V)
    n_blocks = tl.cdiv(stop - first, BLOCK_V)
    for j in range(n_blocks):
        block = n_blocks - 1 - j if BACKWARDS else j
        v = first + block * BLOCK_V + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        y = tl.dot(basis, s, input_precision="tf32x3")
        tl.store(y_ptr + v[:, None] * C + c[None, :], y, mask=(v[:, None] < stop) & (c[None, :] < C))


def three_kernels(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, backwards: bool) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    n_k, n_c = triton.cdiv(K, 32), triton.cdiv(C, 32)
    chunk, n_chunks = _chunks(V, n_k * n_c)
    parts, s, y = x.new_empty(n_chunks, K, C), x.new_empty(K, C), x.new_empty(V, C)
    blocks = {"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32}
    project_kernel[(n_k, n_c, n_chunks)](x, mass, evecs, parts, V, chunk, K, C, **blocks, ATOMIC=False)
    finish_kernel[(triton.cdiv(K * C, 256),)](parts, evals, times, s, n_chunks, K, C, BLOCK=256)
    chunk, n_chunks = _chunks(V, n_c)
    block_k = max(16, triton.next_power_of_2(K))
    expand_kernel[(n_chunks, n_c)](
        evecs, s, y, V, chunk, K, C, BLOCK_V=64, BLOCK_K=block_k, BLOCK_C=32, BACKWARDS=backwards
    )
    return y


def variants() -> dict:
    """The implementations that this step compares."""
    from step_09_split_over_v import by_partial_sums

    return {
        "torch.matmul": by_partial_sums,
        "expansion, first vertex first": partial(three_kernels, backwards=False),
        "expansion, last vertex first": partial(three_kernels, backwards=True),
    }


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
