"""Finds the fastest tile for a user's own shapes on the card at hand: `flashheat tune`.

It is separate from the sweep, which makes the shipped table: here each shape is a user's, and what is found is kept in
the user's own file (`ops/tuned.py`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from flashheat.bench.cases import random_case
from flashheat.bench.sweep import CANDIDATES, check_exact, dtype_of, run_backward, run_forward
from flashheat.bench.timing import gpu_us, require_cuda
from flashheat.errors import FlashheatError
from flashheat.ops import tuned
from flashheat.ops.launch import device_size
from flashheat.ops.tiles import Tile, choose_tile
from flashheat.ops.tuned import Tuned

_log = logging.getLogger("flashheat")
_WORTH = 0.98  # a tile is kept if it takes at most this much of the table's time: less is noise


def run(sizes: list[int], K: int, C: int, precisions: list[str]) -> None:
    """Measure each size in each precision class and keep what is faster than the table; after each shape, on disk.

    Args:
        sizes: numbers of vertices, of all meshes of a batch together.
        K: columns of the basis, 1 to 512.
        C: channels, 1 to 512.
        precisions: of "highest", "high" (float32) and "half" (bf16 and fp16).

    Raises:
        FlashheatError: an argument is out of range, or there is no CUDA device.
    """
    for what, value, largest in (*(("size", V, 2**31 - 1) for V in sizes), ("K", K, 512), ("C", C, 512)):
        if not 1 <= value <= largest:
            raise FlashheatError(f"a {what} to tune must lie between 1 and {largest}; it is {value}")
    for precision in precisions:
        if precision not in CANDIDATES:
            raise FlashheatError(
                f"a precision to tune must be highest, high or half (bf16 and fp16); it is {precision!r}"
            )
    require_cuda("tuning")
    from flashheat.ops import diffuse_triton  # imports triton, which may be absent where there is no CUDA device

    device, start = torch.cuda.get_device_name(), time.monotonic()
    shapes = list(product(precisions, sizes))
    for n, (precision, V) in enumerate(shapes, 1):
        found = best(partial(_time, precision, V, K, C), exact(precision, K, C))
        words = f"{n}/{len(shapes)}: {precision}, V {V}: "
        if found is None:
            words += "the table's tile is the best"
        else:
            path = tuned.save(device, [Tuned(precision, V, K, C, *found)])
            words += f"{found[1]:.1f} us instead of {found[2]:.1f}, kept in {path}"
        left = (time.monotonic() - start) / n * (len(shapes) - n)
        _log.info("%s; about %.0f s left", words, left)
    diffuse_triton.forget_plans()


def exact(precision: str, K: int, C: int) -> Iterator[Tile]:
    """The candidates that are exact on integers; one that does not compile or fit on the card is not."""
    for tile, per_sm in product(CANDIDATES[precision], (1, 2)):
        candidate = replace(tile, per_sm=per_sm)
        try:
            wrong = check_exact(precision, candidate, K, C)
        except Exception as error:  # what a compiler or driver raises is of many kinds
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            _log.debug("%s: %s", candidate, wrong)
        else:
            yield candidate


def best(time_of: Callable[[Tile | None], float], candidates: Iterable[Tile]) -> tuple[Tile, float, float] | None:
    """The fastest candidate, its time and the table's; None where none is clearly faster than the table's."""
    table = time_of(None)
    times = [(time_of(tile), n, tile) for n, tile in enumerate(candidates)]
    if not times:
        return None
    us, _, tile = min(times)
    return (tile, us, table) if us <= _WORTH * table else None


def _time(precision: str, V: int, K: int, C: int, tile: Tile | None) -> float:
    """GPU time of forward and backward; without a tile, with that of the shipped table."""
    device = torch.device("cuda", torch.cuda.current_device())
    tile = tile or choose_tile(precision, V, device_size(device).wgmma)
    case = random_case(V, K, C, dtype_of(precision))
    _, s = run_forward(case, precision, tile)
    return gpu_us(partial(run_forward, case, precision, tile)) + gpu_us(partial(run_backward, case, s, precision, tile))
