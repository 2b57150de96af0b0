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
        num_stages: stages of the compiler's pipeline, where `depth` is 0.
        per_sm: programs that one multiprocessor holds at once; all programs must be resident for the grid barrier.
        depth: steps from the load of a tile to its product. 0 leaves that to the compiler: for bf16 alone.
    """

    block_v: int
    block_out_v: int
    block_c: int
    num_warps: int
    num_stages: int
    per_sm: int
    depth: int = 1


_ANY = float("inf")
# Precision class -> (largest V, tile), in rising order of V: for cards with 160 KB of shared memory and more.
_LARGE: dict[str, list[tuple[float, Tile]]] = {
    "fp16x3": [
        (3_000, Tile(32, 64, 32, 4, 2, 1)),
        (24_000, Tile(32, 64, 64, 4, 2, 1)),
        (_ANY, Tile(32, 64, 64, 4, 2, 2)),
    ],
    "bf16x3": [
        (3_000, Tile(32, 64, 32, 4, 2, 1)),
        (10_000, Tile(32, 64, 64, 4, 2, 1)),
        (24_000, Tile(64, 128, 64, 8, 2, 1)),
        (_ANY, Tile(64, 128, 128, 8, 2, 1)),
    ],
    "half": [
        (10_000, Tile(64, 64, 32, 4, 3, 1, 0)),
        (100_000, Tile(64, 64, 64, 4, 4, 1, 0)),
        (_ANY, Tile(64, 64, 128, 8, 4, 1, 0)),
    ],
    "ieee": [(_ANY, Tile(32, 32, 32, 4, 2, 1))],
}
_SMALL = _LARGE | {
    "fp16x3": [(3_000, Tile(32, 64, 32, 4, 2, 1)), (_ANY, Tile(32, 64, 64, 4, 2, 1))],
    "bf16x3": [(3_000, Tile(32, 64, 32, 4, 2, 1)), (_ANY, Tile(32, 64, 64, 4, 2, 1))],
    "half": [(10_000, Tile(64, 64, 32, 4, 3, 1, 0)), (_ANY, Tile(64, 64, 64, 4, 2, 1, 0))],
}


def table(precision: str, large: bool = True) -> list[tuple[float, Tile]]:
    """The shipped tiles of one precision class, (largest V, tile), for cards of one size of shared memory."""
    return (_LARGE if large else _SMALL)[precision]


def choose_tile(precision: str, n_vertices: int, large: bool = True) -> Tile:
    """The tile for `n_vertices` rows in all, in one precision class ("half": bf16 and fp16)."""
    return next(tile for largest, tile in table(precision, large) if n_vertices <= largest)
