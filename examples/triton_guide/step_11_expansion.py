"""Step 11: the way back as a kernel of our own.

The expansion `y = evecs s` has no sum over V, so it needs no split: a program owns some vertices. Two things are gained
over `torch.matmul`: the spectrum, K x C, stays on chip while a program walks over its vertices; and the walk goes
*backwards*, because what the projection read last is still in the cache. All programs of the projection walk their
chunks at the same time, so that is the end of every chunk: the expansion keeps the projection's chunks, shares each
among four programs, and all of them walk from its end to its beginning.

Look at: the two walks against each other, and both against `torch.matmul`. The harness empties the cache before each
call, so what is found there was left by the projection.
Expected: little for small meshes, where launches cost more than bytes. The cache of an H200 holds 50 MB: in float32,
basis and features of K = C = 128 fill it at V = 50,000. Below, either walk finds all; beyond, only the one backwards
begins with what is there.
"""

from functools import partial

import triton
import triton.language as tl
from step_09_split_over_v import cut_rows, project
from step_10_decay_in_the_finish import decay_in_the_finish, finish
from torch import Tensor


@triton.jit
def expand_kernel(
    evecs_ptr, s_ptr, scale_ptr, y_ptr, V, chunk,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    SHARE: tl.constexpr, BACKWARDS: tl.constexpr,
):  # fmt: skip
    """`y = scale * (evecs s)` for every `SHARE`-th block of vertices of one chunk, and a block of channels."""
    k = tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    s = tl.load(s_ptr + k[:, None] * C + c[None, :], mask=(k[:, None] < K) & (c[None, :] < C), other=0.0)
    first = tl.program_id(0) // SHARE * chunk
    stop = tl.minimum(first + chunk, V)
    n_blocks = tl.cdiv(stop - first, BLOCK_V)
    for j in range(tl.program_id(0) % SHARE, n_blocks, SHARE):
        block = n_blocks - 1 - j if BACKWARDS else j
        v = first + block * BLOCK_V + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        y = tl.dot(basis, s, input_precision="tf32x3")
        if scale_ptr is not None:  # the backward pass of step 12 has the mass here
            y = y * tl.load(scale_ptr + v, mask=v < stop, other=0.0)[:, None]
        tl.store(y_ptr + v[:, None] * C + c[None, :], y, mask=(v[:, None] < stop) & (c[None, :] < C))


def expand(evecs: Tensor, s: Tensor, scale: Tensor | None = None, backwards: bool = True) -> Tensor:
    """`scale * (evecs s)`."""
    (V, K), C = evecs.shape, s.shape[1]
    n_k, n_c = triton.cdiv(K, 32), triton.cdiv(C, 32)
    chunk, n_chunks = cut_rows(V, n_k * n_c)
    y = s.new_empty(V, C)
    # 32 rows: with 64, tf32x3 would pass operands to wgmma in registers, which ptxas before 13.3 may overwrite.
    blocks = {"BLOCK_V": 32, "BLOCK_K": max(16, triton.next_power_of_2(K)), "BLOCK_C": 32}
    grid = (n_chunks * 4, n_c)
    expand_kernel[grid](evecs, s, scale, y, V, chunk, K, C, **blocks, SHARE=4, BACKWARDS=backwards)
    return y


def three_kernels(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, backwards: bool = True
) -> Tensor:
    return expand(evecs, finish(project(x, mass, evecs), evals, times), backwards=backwards)


def variants() -> dict:
    """The implementations that this step compares."""
    return {
        "torch.matmul": decay_in_the_finish,
        "expansion, first vertex first": partial(three_kernels, backwards=False),
        "expansion, last vertex first": three_kernels,
    }


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
