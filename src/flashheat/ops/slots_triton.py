"""Who owns which rows, and how programs wait for one another: the integer side of the Triton kernel.

A chunk is a stretch of rows; what one mesh has in one chunk is a slot, and the reduction writes one partial sum
for each slot. `launch.py` cuts a problem in the same way on the host.
"""

import triton
import triton.language as tl


@triton.jit
def slot_first(offsets_ptr, b, V, rows):
    """The first slot of mesh `b`. Packed meshes share chunks of rows: the slot of mesh b in chunk p is p + b."""
    if offsets_ptr is None:
        return b * tl.cdiv(V, rows)
    else:
        return (tl.minimum(tl.load(offsets_ptr + b), V) // rows).to(tl.int32) + b


@triton.jit
def mesh_rows(offsets_ptr, b, V):
    """The rows `start <= v < stop` of mesh `b`."""
    if offsets_ptr is None:
        start = b.to(tl.int64) * V
        return start, start + V
    else:
        return tl.minimum(tl.load(offsets_ptr + b), V), tl.minimum(tl.load(offsets_ptr + b + 1), V)


@triton.jit
def _mesh_of_row(offsets_ptr, row, B):
    """The last mesh that starts at or before a row of a packed batch."""
    b = -1
    for b0 in range(0, B, 1024):
        meshes = b0 + tl.arange(0, 1024)
        starts = tl.load(offsets_ptr + meshes, mask=meshes < B, other=0)
        b += tl.sum(((meshes < B) & (starts <= row)).to(tl.int32))
    return tl.maximum(b, 0)


@triton.jit
def meshes_of_chunk(offsets_ptr, chunk, V, B, rows):
    """The first mesh of a chunk of `rows` rows and how many meshes it touches; one alone unless they are packed."""
    if offsets_ptr is None:
        return chunk // tl.maximum(tl.cdiv(V, rows), 1), 1
    else:
        start = chunk.to(tl.int64) * rows
        first = _mesh_of_row(offsets_ptr, start, B)
        return first, _mesh_of_row(offsets_ptr, tl.minimum(start + rows, V) - 1, B) - first + 1


@triton.jit
def slot_of(offsets_ptr, chunk, b, V, rows):
    """What mesh `b` has in a chunk: the slot's number, its first row and how many (none where the mesh is empty)."""
    start, stop = mesh_rows(offsets_ptr, b, V)
    if offsets_ptr is None:
        lo = start + (chunk - b * tl.cdiv(V, rows)).to(tl.int64) * rows
        return chunk, lo, tl.minimum(stop - lo, rows).to(tl.int32)
    else:
        lo = tl.maximum(start, chunk.to(tl.int64) * rows)
        hi = tl.minimum(stop, chunk.to(tl.int64) * rows + rows)
        return chunk + b, lo, (hi - lo).to(tl.int32)


@triton.jit
def count_slots(offsets_ptr, start, stop, rows):
    """How many slots the mesh of rows `start <= v < stop` has."""
    if offsets_ptr is None:
        return tl.cdiv((stop - start).to(tl.int32), rows)
    else:
        return tl.where(stop > start, (stop - 1) // rows - start // rows + 1, 0).to(tl.int32)


@triton.jit
def grid_barrier(counter_ptr):
    """Wait for every program. The top bit of the counter flips when all have come, so it never needs a reset."""
    tl.debug_barrier()
    n = tl.num_programs(0)
    step = tl.where(tl.program_id(0) == 0, -2147483648 - (n - 1), 1)
    old = tl.atomic_add(counter_ptr, step, sem="acq_rel", scope="gpu")
    one = tl.arange(0, 32)  # a single lane looks: many would queue before the one word
    while (tl.sum(tl.load(counter_ptr + 0 * one, mask=one == 0, other=0, volatile=True)) ^ old) >= 0:
        pass
    tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()
