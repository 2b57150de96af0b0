"""Step 7: block sizes, warps and stages.

- larger tiles read each operand fewer times: with tiles of 32 x 32 and K = C = 128 both are read four times, with 32 x
  128 the features once and the basis four times; but there are fewer programs, and each needs more registers;
- more warps share the registers of a tile and hide waiting, but meet at more barriers;
- stages are how many steps of loads are under way while one is multiplied; each needs its room in shared memory:
  compiled for sm_90, the tile of 32 x 32 x 64 takes 8 KB with one stage and 33 KB with three.

Expected: one stage is slower, since loads and products then take turns; smaller tiles, of which there are more, are
faster. But where one program has the whole of V in its loop nothing here helps much: that is step 9.

All tiles have at most 32 rows: from 64 on tf32x3 passes operands to wgmma in registers, which ptxas before 13.3 may
overwrite. A tile that is fast and wrong is found only by a test of each configuration.
"""

from functools import partial

import triton
from step_03_naive import project_kernel
from torch import Tensor

CHOICES = [  # K, C and V of a tile, warps, stages
    (32, 32, 64, 4, 3),
    (32, 32, 64, 4, 1),
    (32, 32, 64, 8, 3),
    (32, 32, 32, 4, 3),
    (16, 16, 64, 4, 3),
    (32, 128, 32, 4, 3),
]


def projected(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, choice: tuple[int, int, int, int, int]
) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    block_k, block_c, block_v, num_warps, num_stages = choice
    s = x.new_empty(K, C)
    project_kernel[triton.cdiv(K, block_k), triton.cdiv(C, block_c)](
        x, mass, evals, evecs, times, s, V, K, C, BLOCK_V=block_v, BLOCK_K=block_k, BLOCK_C=block_c,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    words = "{} x {}, {} vertices a step, {} warps, {} stages"
    return {words.format(*choice): partial(projected, choice=choice) for choice in CHOICES}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
