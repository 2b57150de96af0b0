"""The tile table: how the Triton kernel cuts a problem, by precision class and number of vertices.

It is separate because it is data, made by `python -m flashheat.bench.sweep` on a device and pasted here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Block sizes of one binary.

    Args:
        block_v: vertices a step of the reduction.
        block_out_v: vertices a step of the expansion.
        block_c: channels of one program.
        num_warps: warps of one program.
        num_stages: stages of the compiler's pipeline, where nothing is carried.
        per_sm: programs that one multiprocessor holds at once; all programs must be resident for the grid barrier.
        carry: multiply in each step what the step before has loaded. Otherwise the compiler pipelines the loads.
    """

    block_v: int
    block_out_v: int
    block_c: int
    num_warps: int
    num_stages: int
    per_sm: int
    carry: bool = True


_ANY = float("inf")
# Precision class -> (largest V, tile), in rising order of V: for Hopper, whose tensor cores read shared memory (wgmma).
_WGMMA: dict[str, list[tuple[float, Tile]]] = {
    "fp16x3": [
        (3_000, Tile(32, 64, 32, 4, 1, 1)),
        (12_000, Tile(32, 64, 64, 4, 1, 1)),
        (_ANY, Tile(32, 64, 64, 4, 1, 2)),
    ],
    "bf16x3": [
        (3_000, Tile(32, 64, 32, 4, 1, 1)),
        (12_000, Tile(32, 64, 64, 4, 1, 1)),
        (40_000, Tile(32, 64, 64, 4, 1, 2)),
        (_ANY, Tile(64, 128, 128, 8, 1, 1)),
    ],
    "half": [
        (10_000, Tile(64, 64, 32, 4, 4, 1, False)),
        (100_000, Tile(64, 64, 64, 4, 4, 1, False)),
        (_ANY, Tile(64, 64, 64, 4, 4, 2, False)),
    ],
    "ieee": [(_ANY, Tile(32, 32, 32, 4, 1, 1))],
}
# The others would spill with tiles as large.
_OTHER = _WGMMA | {
    "fp16x3": [(3_000, Tile(32, 32, 32, 4, 1, 1)), (_ANY, Tile(32, 32, 64, 8, 1, 1))],
    "bf16x3": [(3_000, Tile(32, 32, 32, 4, 1, 1)), (_ANY, Tile(32, 32, 64, 8, 1, 1))],
    "half": [(_ANY, Tile(64, 64, 32, 4, 2, 1, False))],
}


def table(precision: str, wgmma: bool = True) -> list[tuple[float, Tile]]:
    """The shipped tiles of one precision class, (largest V, tile), for cards with `wgmma` (Hopper) or the others."""
    return (_WGMMA if wgmma else _OTHER)[precision]


def choose_tile(precision: str, n_vertices: int, wgmma: bool = True) -> Tile:
    """The tile for `n_vertices` rows in all, in one precision class ("half": bf16 and fp16)."""
    return next(tile for largest, tile in table(precision, wgmma) if n_vertices <= largest)
