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
        products: how an operand is split on tensor cores: "bf16x6", "fp16x3", "bf16x3" (`products_triton.py`), "half"
            (features in half precision, multiplied as they are) or "ieee" (float32 as it is: slow, for tests).
        operands: "carried", "registers" or "pipelined", as `_reduce_rows` of the kernel explains.
    """

    block_v: int
    block_out_v: int
    block_c: int
    num_warps: int
    num_stages: int
    per_sm: int
    products: str
    operands: str = "carried"


_ANY = float("inf")
# Precision class -> (largest V, tile), in rising order of V: for Hopper, whose tensor cores read shared memory (wgmma).
_WGMMA: dict[str, list[tuple[float, Tile]]] = {
    "highest": [
        (1_500, Tile(32, 32, 32, 4, 1, 1, "fp16x3", "registers")),
        (3_000, Tile(32, 64, 32, 4, 1, 1, "bf16x6")),
        (6_000, Tile(16, 64, 64, 4, 1, 1, "bf16x6")),
        (_ANY, Tile(16, 64, 64, 4, 1, 2, "bf16x6")),
    ],
    "high": [
        (3_000, Tile(32, 64, 32, 4, 1, 1, "bf16x3")),
        (12_000, Tile(32, 64, 64, 4, 1, 1, "bf16x3")),
        (40_000, Tile(32, 64, 64, 4, 1, 2, "bf16x3")),
        (_ANY, Tile(64, 128, 128, 8, 1, 1, "bf16x3")),
    ],
    "half": [
        (10_000, Tile(64, 64, 32, 4, 4, 1, "half", "pipelined")),
        (100_000, Tile(64, 64, 64, 4, 4, 1, "half", "pipelined")),
        (_ANY, Tile(64, 64, 64, 4, 4, 2, "half", "pipelined")),
    ],
    "ieee": [(_ANY, Tile(32, 32, 32, 4, 1, 1, "ieee"))],
}
# The others would spill with tiles as large.
_OTHER = _WGMMA | {
    "highest": [
        (3_000, Tile(32, 32, 32, 4, 1, 1, "fp16x3")),
        (_ANY, Tile(32, 32, 64, 8, 1, 1, "fp16x3")),
    ],
    "high": [
        (3_000, Tile(32, 32, 32, 4, 1, 1, "bf16x3")),
        (_ANY, Tile(32, 32, 64, 8, 1, 1, "bf16x3")),
    ],
    "half": [(_ANY, Tile(64, 32, 32, 4, 3, 1, "half", "pipelined"))],
}


def table(precision: str, wgmma: bool = True) -> list[tuple[float, Tile]]:
    """The shipped tiles of one precision class, (largest V, tile), for cards with `wgmma` (Hopper) or the others."""
    return (_WGMMA if wgmma else _OTHER)[precision]


def choose_tile(precision: str, n_vertices: int, wgmma: bool = True) -> Tile:
    """The tile for `n_vertices` rows in all, in one precision class ("half": bf16 and fp16)."""
    return next(tile for largest, tile in table(precision, wgmma) if n_vertices <= largest)
