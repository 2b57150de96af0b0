"""Step 15: tuning, and why a table is kept.

`triton.autotune` times every configuration the first time that it meets a new key, and keeps the fastest for the life
of the process. Keyed by V, it would do so for every mesh; not keyed by V, it takes for all what is best for the first.
Meshes have thousands of sizes, so the key here is V rounded up to a power of two: a handful of keys, each tuned once.

Three traps: whatever the kernel writes is written again by every trial, so a kernel that adds to its result (the
atomics of step 9) must name it in `reset_to_zero`; the trials run with a warm cache, real calls perhaps not; and the
first call of each key takes seconds, which a user sees as a hang.

So flashheat ships a table by size (`ops/tiles.py`), made once by `python -m flashheat.bench.sweep`, which also holds
every candidate to exact results first, and `flashheat tune` measures a user's own sizes.

Look at: what was chosen for each size, printed on a GPU. Under the interpreter nothing can be timed, and the first
configuration is taken.
Expected: other winners for small and for large V.
"""

import os

import triton
import triton.language as tl
from step_03_naive import naive, project_kernel
from torch import Tensor

CONFIGURATIONS = [
    triton.Config({"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_V": 32, "BLOCK_K": 32, "BLOCK_C": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_V": 64, "BLOCK_K": 16, "BLOCK_C": 16}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_V": 64, "BLOCK_K": 16, "BLOCK_C": 16}, num_warps=2, num_stages=4),
]
if os.environ.get("TRITON_INTERPRET") == "1":
    CONFIGURATIONS = CONFIGURATIONS[:1]


@triton.autotune(configs=CONFIGURATIONS, key=["K", "C", "SIZE"])
@triton.jit
def tuned_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V, K: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The kernel of step 3; `SIZE` is there to be a key."""
    project_kernel(
        x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V, K, C, BLOCK_V, BLOCK_K, BLOCK_C
    )  # fmt: skip


def tuned(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(K, chosen["BLOCK_K"]), triton.cdiv(C, chosen["BLOCK_C"])

    tuned_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, SIZE=triton.next_power_of_2(V))
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    return {"one configuration for all": naive, "tuned by rounded size": tuned}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
    for key, chosen in tuned_kernel.cache.items():
        print(f"K, C, SIZE {key[:3]}: {chosen}")
