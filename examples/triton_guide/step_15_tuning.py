"""Step 15: tuning, and why a table is kept.

`triton.autotune` times every configuration the first time that it meets a new key, and keeps the fastest. Keyed by V,
it would do so for every mesh; not keyed by V, it takes for all what is best for the first. Meshes have thousands of
sizes, so flashheat ships a table by size (`ops/tiles.py`), made by `python -m flashheat.bench.sweep`, and `flashheat
tune` measures a user's own sizes. Here V is rounded up to a power of two: a handful of keys, each tuned once.

Look at: the first call of each key takes seconds, those after it nothing. Under the interpreter nothing is timed.
"""

import os

import triton
from step_03_naive import project_kernel
from torch import Tensor

CONFIGURATIONS = [
    triton.Config({"BLOCK_V": 64, "BLOCK_K": 32, "BLOCK_C": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_V": 32, "BLOCK_K": 32, "BLOCK_C": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_V": 32, "BLOCK_K": 64, "BLOCK_C": 64}, num_warps=4, num_stages=2),
]
_best: dict[tuple[int, int, int], triton.Config] = {}


def _launch(config: triton.Config, x: Tensor, s: Tensor, *rest: Tensor) -> None:
    (V, C), K = x.shape, s.shape[0]
    blocks = config.kwargs
    grid = (triton.cdiv(K, blocks["BLOCK_K"]), triton.cdiv(C, blocks["BLOCK_C"]))
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    project_kernel[grid](x, *rest, s, V, K, C, **blocks, **options)


def tuned(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    rest = (mass, evals, evecs, times)
    key = (triton.next_power_of_2(V), K, C)
    if key not in _best:
        if os.environ.get("TRITON_INTERPRET") == "1":
            _best[key] = CONFIGURATIONS[0]
        else:
            _best[key] = min(CONFIGURATIONS, key=lambda c: triton.testing.do_bench(lambda: _launch(c, x, s, *rest)))
    _launch(_best[key], x, s, *rest)
    return evecs @ s


def variants() -> dict:
    """The implementations that this step compares."""
    from step_03_naive import naive

    return {"one configuration for all": naive, "tuned by rounded size": tuned}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
