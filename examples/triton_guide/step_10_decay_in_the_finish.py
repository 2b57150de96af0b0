"""Step 10: the decay in the kernel that adds the partial sums.

Step 9 adds the parts in a kernel of its own, and PyTorch then launches four more for the decay: a sign, a product of
`evals` and `times`, an exponential, a product. All of it acts on K x C numbers, so none of it costs bytes: it costs
launches. Whoever holds the finished sum in registers can multiply it on the spot, in float32, before anything is cast.

The decay cannot go further forward for nothing: in the projection it would be applied to every part, once a chunk. It
cannot go further back either: in the expansion every program would repeat it.

Look at: the second variant against the first, where only launches differ; and the third against the second, where a
program loads eight parts at once. Without that each load waits for the sum before it.
Expected: some microseconds at every size, the same at V = 1,000 as at 64,000: what counts most for small meshes.
"""

import triton
import triton.language as tl
from step_09_split_over_v import by_partial_sums, project
from torch import Tensor


@triton.jit
def finish_kernel(
    parts_ptr, evals_ptr, times_ptr, s_ptr, n_parts,
    K: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS_A_STEP: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals times) * (sum of the parts)` for `BLOCK` entries of K x C; the order of the sum is fixed."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < K * C
    evals = tl.load(evals_ptr + at // C, mask=inside, other=0.0)
    times = tl.load(times_ptr + at % C, mask=inside, other=0.0)
    sums = tl.zeros((PARTS_A_STEP, BLOCK), tl.float32)
    for first in range(0, n_parts, PARTS_A_STEP):
        part = first + tl.arange(0, PARTS_A_STEP)
        mask = (part[:, None] < n_parts) & inside[None, :]
        sums += tl.load(parts_ptr + part[:, None] * (K * C) + at[None, :], mask=mask, other=0.0)
    tl.store(s_ptr + at, tl.exp(-evals * times) * tl.sum(sums, 0), mask=inside)


def finish(parts: Tensor, evals: Tensor, times: Tensor, parts_a_step: int = 8) -> Tensor:
    """The spectrum `[K, C]` of the partial sums."""
    n_parts, K, C = parts.shape
    s = parts.new_empty(K, C)
    blocks = {"BLOCK": 128, "PARTS_A_STEP": parts_a_step}
    finish_kernel[(triton.cdiv(K * C, 128),)](parts, evals, times, s, n_parts, K, C, **blocks)
    return s


def one_part_a_step(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    return evecs @ finish(project(x, mass, evecs), evals, times, parts_a_step=1)


def decay_in_the_finish(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    return evecs @ finish(project(x, mass, evecs), evals, times)


def variants() -> dict:
    """The implementations that this step compares."""
    return {
        "sum, then decay by PyTorch": by_partial_sums,
        "decay in the finish, one part a step": one_part_a_step,
        "decay in the finish, eight parts a step": decay_in_the_finish,
    }


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
