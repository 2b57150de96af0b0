"""How a problem is cut into the slots of the Triton kernel, and the counter that its grid barrier needs.

It is separate from the kernel because it is plain integer arithmetic that a test can check without a device.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from flashheat.ops import tuned
from flashheat.ops.tiles import Tile, choose_tile

_COUNTER_BYTES = 16  # pointers stay aligned, so that one binary serves every counter
_N_COUNTERS = 16_384
_ROWS = 16  # a chunk has a multiple of so many rows
_pools: dict[int, Tensor] = {}
_by_stream: dict[tuple[int, int], Tensor] = {}
_n_taken: dict[int, int] = {}


@dataclass(frozen=True)
class DeviceSize:
    """Multiprocessors of a device, whether its tensor cores read shared memory (Hopper), and its name."""

    n_sm: int
    wgmma: bool
    name: str = ""


@dataclass(frozen=True)
class Cut:
    """One problem as the kernel sees it.

    A chunk is a stretch of at most `rows` vertices: of one mesh, or of all packed meshes together. What one mesh has in
    one chunk is a slot; the reduction writes one partial sum for each. The expansion has chunks of its own. `V` is the
    size of each mesh, or of all where offsets pack them; `blocks` are BLOCK_V, OUT_V, K, C, S, FK, FC of the kernel.
    """

    V: int
    B: int
    K: int
    C: int
    rows: int
    n_chunks: int
    n_slots: int
    out_rows: int
    n_out_chunks: int
    n_finish: int
    n_programs: int
    blocks: tuple[int, ...]
    tile: Tile


@lru_cache(1024)
def cut(
    V: int, B: int, K: int, C: int, packed: bool, precision: str, device: DeviceSize, tile: Tile | None = None
) -> Cut:
    """Cut `B` meshes of `V` vertices (packed: of `V` vertices in all) so that the device's programs are busy."""
    n_vertices = V if packed else V * B
    tile = tile or tuned.choose(device.name, precision, n_vertices, K, C)
    tile = tile or choose_tile(precision, n_vertices, device.wgmma)
    block_k, block_c = min(128, _block(K)), min(tile.block_c, _block(C))
    n_k, n_c = -(-K // block_k), -(-C // block_c)
    resident = device.n_sm * tile.per_sm
    rows, n_chunks = _chunks(V, 1 if packed else B, resident // (n_k * n_c))
    out_rows, n_out_chunks = _chunks(V, 1 if packed else B, resident // n_c)
    n_slots = n_chunks + B if packed else n_chunks
    threads, block_fc = 32 * tile.num_warps, _block(C)
    block_fk = 1 if B == 1 else max(1, 8 * threads // block_fc)
    block_s = max(1, 32 * threads // (block_fk * block_fc))
    n_finish = B * -(-K // block_fk)
    n_items = max(n_chunks * n_k * n_c, n_out_chunks * n_c, n_finish)
    blocks = (tile.block_v, tile.block_out_v, block_k, block_c, block_s, block_fk, block_fc)
    programs = max(1, min(resident, n_items))
    return Cut(V, B, K, C, rows, n_chunks, n_slots, out_rows, n_out_chunks, n_finish, programs, blocks, tile)


def _chunks(V: int, B: int, wanted: int) -> tuple[int, int]:
    """Rows of a chunk and the number of chunks, near `wanted`. The last block of rows need not be whole: to keep all
    programs busy saves more."""
    rows = _up(max(1, -(-V * B // max(1, wanted))), _ROWS)
    return rows, B * -(-V // rows)


def counter(device: torch.device) -> Tensor:
    """An int32 counter that is zero (but for its top bit) between launches and that no concurrent launch uses.

    An eager launch has that of its stream. A captured launch has one of its own for ever, because the graph may be
    replayed beside eager work; where none is left, the graph sets one to zero itself.
    """
    if device.type != "cuda":
        return torch.zeros(1, dtype=torch.int32, device=device)
    index = device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    if torch.cuda.is_current_stream_capturing():
        if index not in _pools or _n_taken[index] >= _N_COUNTERS:
            return torch.zeros(4, dtype=torch.int32, device=device)
        return _take(index)
    if (index, stream) not in _by_stream:
        _by_stream[index, stream] = _fresh(index, device)
    return _by_stream[index, stream]


def _fresh(index: int, device: torch.device) -> Tensor:
    if index not in _pools:
        _pools[index] = torch.zeros(_N_COUNTERS, _COUNTER_BYTES // 4, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        _n_taken[index] = 0
    if _n_taken[index] >= _N_COUNTERS // 2:  # streams beyond count on their own memory; half is kept for graphs
        zero = torch.zeros(4, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        return zero
    return _take(index)


def _take(index: int) -> Tensor:
    _n_taken[index] += 1
    return _pools[index][_n_taken[index] - 1]


@cache
def device_size(device: torch.device) -> DeviceSize:
    """The room on a device; any small number for the interpreter, which runs one program that owns all chunks."""
    if device.type != "cuda":
        return DeviceSize(3, True)
    properties = torch.cuda.get_device_properties(device)
    return DeviceSize(properties.multi_processor_count, properties.major == 9, properties.name)


def _block(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
