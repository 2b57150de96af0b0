"""The Triton kernel behind `diffuse`, `to_basis` and `from_basis`.

One cooperative launch runs up to three phases with a grid barrier between them, so that a small mesh pays for one
launch and the end of the basis is still in the cache when the expansion walks it backwards:

    reduce:  parts[slot] = evecs^T (mass * x)    over the rows of one slot (what one mesh has in one chunk)
    finish:  s           = exp(-evals * times) * sum over the slots of a mesh of parts, in a fixed order
    expand:  y           = evecs s

The backward pass is the same kernel on the cotangents: no mass in the reduction, the mass as a row scale of the
expansion, and the derivatives of `times` and `evals` in the finish.
"""

import triton
import triton.language as tl


@triton.jit
def _split(a, AXIS: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr):
    """`(a1, a2, unscale)` with `a = (a1 + a2) unscale`, the parts in `DTYPE`; one part alone is repeated.

    In fp16 each line along `AXIS` is first scaled by the power of two that takes its largest entry to 2^14 .. 2^15:
    two parts then hold 24 bits, as float32 does, and nothing overflows or gets lost in subnormals.
    """
    unscale = tl.full((1, 1), 1.0, tl.float32)
    if tl.float16 == DTYPE:
        a = a.to(tl.float32)
        largest = tl.max(tl.abs(a), AXIS, keep_dims=True)
        exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 15)
        a = a * ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        unscale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    if PARTS == 1:
        a1 = a.to(DTYPE)
        a2 = a1
    elif tl.bfloat16 == DTYPE:  # rounded in integers: a cast and its inverse would run at a sixteenth of the speed
        a = a.to(tl.float32)
        near = ((a.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True)
        a1 = near.to(DTYPE)
        a2 = (a - near).to(DTYPE)
    else:
        a1 = a.to(DTYPE)  # (fp16: `a` is float32 by now)
        a2 = (a - a1.to(tl.float32)).to(DTYPE)
    return a1, a2, unscale


@triton.jit
def _dot(a1, a2, b1, b2, acc, PARTS: tl.constexpr):
    """`acc + (a1 + a2) (b1 + b2)` without the last, negligible product; small products first."""
    if PARTS > 1:
        acc = tl.dot(a2, b1, acc)
        acc = tl.dot(a1, b2, acc)
    return tl.dot(a1, b1, acc, input_precision="ieee")


@triton.jit
def _add_product(a1, a2, unscale_a, b1, b2, unscale_b, acc, PARTS: tl.constexpr):
    """`acc + (a1 + a2)^T (b1 + b2)`, unscaled."""
    if a1.dtype == tl.float16:  # by itself: it has its own scale, and tensor cores truncate when they add
        t = _dot(tl.trans(a1), tl.trans(a2), b1, b2, tl.zeros_like(acc), PARTS)
        return acc + t * tl.trans(unscale_a) * unscale_b
    else:
        return _dot(tl.trans(a1), tl.trans(a2), b1, b2, acc, PARTS)


@triton.jit
def _product(a1, a2, unscale_a, b1, b2, unscale_b, PARTS: tl.constexpr):
    """`(a1 + a2) (b1 + b2)`, unscaled. The three products do not wait for one another."""
    zero = tl.zeros((a1.shape[0], b1.shape[1]), tl.float32)
    acc = tl.dot(a1, b1, zero, input_precision="ieee")
    if PARTS > 1:
        acc = (tl.dot(a2, b1, zero) + tl.dot(a1, b2, zero)) + acc
    if a1.dtype == tl.float16:
        acc = acc * unscale_a * unscale_b
    return acc


@triton.jit
def _load_tile(
    ptr, stride_row, stride_col, row, n, cols, N_COLS: tl.constexpr, BLOCK_V: tl.constexpr, FULL: tl.constexpr
):
    """`BLOCK_V` rows from `row` on, the first `n` of them real, and columns of a matrix; zero outside."""
    v = tl.arange(0, BLOCK_V)
    cols_at = cols.to(tl.int64) * stride_col
    mask = v[:, None] < n
    if not FULL:
        mask = mask & (cols[None, :] < N_COLS)
    return tl.load(ptr + row * stride_row + v[:, None] * stride_row + cols_at[None, :], mask=mask, other=0.0)


@triton.jit
def _load_mass(mass_ptr, stride_mass_v, row, n, BLOCK_V: tl.constexpr):
    v = tl.arange(0, BLOCK_V)
    return tl.load(mass_ptr + row * stride_mass_v + v * stride_mass_v, mask=v < n, other=0.0).to(tl.float32)


@triton.jit
def _slot_first(offsets_ptr, b, V, rows):
    """The first slot of mesh `b`. Packed meshes share chunks of rows: the slot of mesh b in chunk p is p + b."""
    if offsets_ptr is None:
        return b * tl.cdiv(V, rows)
    else:
        return (tl.minimum(tl.load(offsets_ptr + b), V) // rows).to(tl.int32) + b


@triton.jit
def _mesh_rows(offsets_ptr, b, V):
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
def _meshes_of_chunk(offsets_ptr, chunk, V, B, rows):
    """The first mesh of a chunk of `rows` rows and how many meshes it touches; one alone unless they are packed."""
    if offsets_ptr is None:
        return chunk // tl.maximum(tl.cdiv(V, rows), 1), 1
    else:
        start = chunk.to(tl.int64) * rows
        first = _mesh_of_row(offsets_ptr, start, B)
        return first, _mesh_of_row(offsets_ptr, tl.minimum(start + rows, V) - 1, B) - first + 1


@triton.jit
def _slot(offsets_ptr, chunk, b, V, rows):
    """What mesh `b` has in a chunk: the slot's number, its first row and how many (none where the mesh is empty)."""
    start, stop = _mesh_rows(offsets_ptr, b, V)
    if offsets_ptr is None:
        lo = start + (chunk - b * tl.cdiv(V, rows)).to(tl.int64) * rows
        return chunk, lo, tl.minimum(stop - lo, rows).to(tl.int32)
    else:
        lo = tl.maximum(start, chunk.to(tl.int64) * rows)
        hi = tl.minimum(stop, chunk.to(tl.int64) * rows + rows)
        return chunk + b, lo, (hi - lo).to(tl.int32)


@triton.jit
def _n_slots(offsets_ptr, start, stop, rows):
    """How many slots the mesh of rows `start <= v < stop` has."""
    if offsets_ptr is None:
        return tl.cdiv((stop - start).to(tl.int32), rows)
    else:
        return tl.where(stop > start, (stop - 1) // rows - start // rows + 1, 0).to(tl.int32)


@triton.jit
def _grid_barrier(counter_ptr):
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


@triton.jit
def _weigh(x, mass, MASS: tl.constexpr):
    if MASS:
        x = x.to(tl.float32) * mass[:, None]
    return x


@triton.jit
def _load_step(
    x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k, row, n, k, c,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The tiles of the basis and the features, and the mass, of the `n` rows from `row` on."""
    basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, row, n, k, K, BLOCK_V, K % BLOCK_K == 0)
    x = _load_tile(x_ptr, stride_x_v, stride_x_c, row, n, c, C, BLOCK_V, C % BLOCK_C == 0)
    if mass_ptr is not None:
        mass = _load_mass(mass_ptr, stride_mass_v, row, n, BLOCK_V)
    else:
        mass = tl.zeros((BLOCK_V,), tl.float32)
    return basis, x, mass


@triton.jit
def _reduce_rows(
    x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k, lo, n, k, c,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr, PARTS: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """`sum over lo <= v < lo + n of evecs[v, k] mass[v] x[v, c]`.

    With `CARRY` each step multiplies the tile of the step before: so the loads run beside the products, and the
    compiler takes both operands from shared memory (it does so for values carried round a loop; operands computed in
    the same step it would pass in registers, and fetch the basis four bytes at a time).
    Operands that need no work are not carried: for those the compiler's own pipeline is the better one.
    """
    MASS: tl.constexpr = mass_ptr is not None
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    if not CARRY:
        for i in range(0, n, BLOCK_V):
            basis, x, mass = _load_step(
                x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k,
                lo + i, n - i, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C,
            )  # fmt: skip
            acc = tl.dot(tl.trans(basis), _weigh(x, mass, MASS).to(DTYPE), acc)
    else:
        a1 = tl.zeros((BLOCK_V, BLOCK_K), DTYPE)  # the first step multiplies nothing, while its loads are on the way
        b1 = tl.zeros((BLOCK_V, BLOCK_C), DTYPE)
        a2, b2 = a1, b1
        SCALED: tl.constexpr = tl.float16 == DTYPE
        unscale_a = tl.full((1, BLOCK_K if SCALED else 1), 1.0, tl.float32)
        unscale_b = tl.full((1, BLOCK_C if SCALED else 1), 1.0, tl.float32)
        for i in range(0, n + BLOCK_V, BLOCK_V):
            basis, x, mass = _load_step(
                x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k,
                lo + i, n - i, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C,
            )  # fmt: skip
            acc = _add_product(a1, a2, unscale_a, b1, b2, unscale_b, acc, PARTS)
            a1, a2, unscale_a = _split(basis, 0, DTYPE, PARTS)
            b1, b2, unscale_b = _split(_weigh(x, mass, MASS), 0, DTYPE, PARTS)
    return acc


@triton.jit
def _load_spectral(s_ptr, b, k, c, K: tl.constexpr, C: tl.constexpr):
    """`s[b, k, c]`, past the first cache level: another program wrote it."""
    at = s_ptr + b.to(tl.int64) * K * C + k[:, None] * C + c[None, :]
    return tl.load(at, mask=(k[:, None] < K) & (c[None, :] < C), other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def _store_rows(
    y_ptr, mass_ptr, stride_mass_v, acc, row, n, c, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """`y[v, c] = mass[v] acc` for the `n` rows from `row` on."""
    v = tl.arange(0, BLOCK_V)
    if mass_ptr is not None:
        acc = acc * _load_mass(mass_ptr, stride_mass_v, row, n, BLOCK_V)[:, None]
    mask = v[:, None] < n
    if C % BLOCK_C != 0:
        mask = mask & (c[None, :] < C)
    tl.store(y_ptr + row * C + v[:, None] * C + c[None, :], acc.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _expand_rows(
    y_ptr, mass_ptr, evecs_ptr, s_ptr, stride_mass_v, stride_evecs_v, stride_evecs_k, b, lo, n, c,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr, PARTS: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """`y[v, c] = mass[v] sum over k of evecs[v, k] s[k, c]`, last rows first.

    As in the reduction a step multiplies what an earlier step has loaded.
    """
    FULL: tl.constexpr = K % BLOCK_K == 0
    k = tl.arange(0, BLOCK_K)
    n_tiles = tl.cdiv(n, BLOCK_V)
    if K <= BLOCK_K and not CARRY:
        s1, s2, unscale_s = _split(_load_spectral(s_ptr, b, k, c, K, C), 0, DTYPE, PARTS)
        for j in range(n_tiles):
            i = (n_tiles - 1 - j) * BLOCK_V
            tile = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k, K, BLOCK_V, FULL)
            acc = tl.dot(tile, s1, tl.zeros((BLOCK_V, BLOCK_C), tl.float32))
            _store_rows(y_ptr, mass_ptr, stride_mass_v, acc, lo + i, n - i, c, C, BLOCK_V, BLOCK_C)
    elif K <= BLOCK_K:
        done = (n_tiles - 1) * BLOCK_V
        basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + done, n - done, k, K, BLOCK_V, FULL)
        s1, s2, unscale_s = _split(_load_spectral(s_ptr, b, k, c, K, C), 0, DTYPE, PARTS)
        a1, a2, unscale_a = _split(basis, 1, DTYPE, PARTS)
        for j in range(n_tiles):
            i = (n_tiles - 1 - j) * BLOCK_V
            more = tl.where(i > 0, BLOCK_V, 0)
            basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i - BLOCK_V, more, k, K, BLOCK_V, FULL)
            acc = _product(a1, a2, unscale_a, s1, s2, unscale_s, PARTS)
            _store_rows(y_ptr, mass_ptr, stride_mass_v, acc, lo + i, n - i, c, C, BLOCK_V, BLOCK_C)
            a1, a2, unscale_a = _split(basis, 1, DTYPE, PARTS)
    else:
        for j in range(n_tiles):
            i = (n_tiles - 1 - j) * BLOCK_V
            basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k, K, BLOCK_V, FULL)
            a1, a2, unscale_a = _split(basis, 1, DTYPE, PARTS)
            s1, s2, unscale_s = _split(_load_spectral(s_ptr, b, k, c, K, C), 0, DTYPE, PARTS)
            acc = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
            for k0 in range(BLOCK_K, K + BLOCK_K, BLOCK_K):
                basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k0 + k, K, BLOCK_V, False)
                s = _load_spectral(s_ptr, b, k0 + k, c, K, C)
                acc += _product(a1, a2, unscale_a, s1, s2, unscale_s, PARTS)
                a1, a2, unscale_a = _split(basis, 1, DTYPE, PARTS)
                s1, s2, unscale_s = _split(s, 0, DTYPE, PARTS)
            _store_rows(y_ptr, mass_ptr, stride_mass_v, acc, lo + i, n - i, c, C, BLOCK_V, BLOCK_C)


@triton.jit
def _finish(
    parts_ptr, offsets_ptr, evals_ptr, times, h_ptr, spectral_ptr, s_ptr, d_evals_ptr, d_times_parts_ptr,
    item, n_items, V, rows,
    K: tl.constexpr, C: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_FK: tl.constexpr, BLOCK_FC: tl.constexpr,
):  # fmt: skip
    """Some rows k of one mesh, all channels: `s = exp(-evals * times) (sum of parts + h)`. In the backward pass also

    `d_evals[k] = -sum over c of times s_fwd g_hat` and a share of `d_times[c] = -sum over k of evals s_fwd g_hat`.
    """
    b = item // tl.cdiv(K, BLOCK_FK)
    k = (item % tl.cdiv(K, BLOCK_FK)) * BLOCK_FK + tl.arange(0, BLOCK_FK)
    c = tl.arange(0, BLOCK_FC)
    mask = (k[:, None] < K) & (c[None, :] < C)
    kc = k[:, None] * C + c[None, :]
    start, stop = _mesh_rows(offsets_ptr, b, V)
    first = _slot_first(offsets_ptr, b, V, rows)
    n_slots = _n_slots(offsets_ptr, start, stop, rows)
    block = b.to(tl.int64) * (K * C) + kc
    if evals_ptr is not None:
        evals = tl.load(evals_ptr + b.to(tl.int64) * K + k, mask=k < K, other=0.0).to(tl.float32)
    if h_ptr is not None:
        h = tl.load(h_ptr + block, mask=mask, other=0.0)
    if spectral_ptr is not None:
        spectral = tl.load(spectral_ptr + block, mask=mask, other=0.0)
    sums = tl.zeros((BLOCK_S, BLOCK_FK, BLOCK_FC), tl.float32)
    for j in range(0, n_slots, BLOCK_S):
        slots = j + tl.arange(0, BLOCK_S)
        at = parts_ptr + (first + slots).to(tl.int64)[:, None, None] * (K * C) + kc[None, :, :]
        sums += tl.load(at, mask=(slots < n_slots)[:, None, None] & mask[None, :, :], other=0.0, cache_modifier=".cg")
    x_hat = tl.sum(sums, 0)
    if h_ptr is not None:
        x_hat += h
    if evals_ptr is None:
        tl.store(s_ptr + block, x_hat, mask=mask)
    else:
        tl.store(s_ptr + block, tl.exp2(-1.4426950408889634 * evals[:, None] * times[None, :]) * x_hat, mask=mask)
        if spectral_ptr is not None:
            both = spectral * x_hat
            if d_evals_ptr is not None:
                d_evals = -tl.sum(both * times[None, :], 1)
                tl.store(d_evals_ptr + b.to(tl.int64) * K + k, d_evals, mask=k < K)
            if d_times_parts_ptr is not None:
                d_times = -tl.sum(both * evals[:, None], 0)
                tl.store(d_times_parts_ptr + c.to(tl.int64) * n_items + item, d_times, mask=c < C)


@triton.jit
def _sum_row(parts_ptr, out_ptr, row, n):
    """`out[row] = sum of parts[row, :n]`, in a fixed order."""
    total = tl.zeros((512,), tl.float32)
    for i in range(0, n, 512):
        j = i + tl.arange(0, 512)
        total += tl.load(parts_ptr + row.to(tl.int64) * n + j, mask=j < n, other=0.0, cache_modifier=".cg")
    tl.store(out_ptr + row, tl.sum(total))


@triton.jit(do_not_specialize=["V", "B", "n_chunks", "rows", "n_out_chunks", "out_rows"])
def diffuse_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, offsets_ptr, out_mass_ptr, h_ptr, spectral_ptr,
    y_ptr, s_ptr, d_times_ptr, d_evals_ptr, parts_ptr, d_times_parts_ptr, counter_ptr,
    V, B, n_chunks, rows, n_out_chunks, out_rows,
    stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k,
    K: tl.constexpr, C: tl.constexpr, ROW_X: tl.constexpr, ROW_EVECS: tl.constexpr,
    REDUCE: tl.constexpr, EXPAND: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_OUT_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_FK: tl.constexpr, BLOCK_FC: tl.constexpr,
    DTYPE: tl.constexpr, PARTS: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals * times) (evecs^T (mass * x) + h)`, then `y = out_mass * (evecs s)`.

    A program owns every P-th item of each phase: (chunk, k block, c block), (mesh, rows k), then (chunk, c block).
    The sum over the vertices is split by slots, that of `d_times` by (mesh, rows k); both are added in a fixed order.
    """
    row_x = ROW_X if ROW_X else stride_x_v
    row_evecs = ROW_EVECS if ROW_EVECS else stride_evecs_v
    pid = tl.program_id(0)
    P = tl.num_programs(0)
    N_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    N_K: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    if REDUCE:
        fc = tl.arange(0, BLOCK_FC)
        times = tl.zeros((BLOCK_FC,), tl.float32)
        if times_ptr is not None:
            times = tl.load(times_ptr + fc, mask=fc < C, other=0.0).to(tl.float32)
        for i in range(tl.cdiv(n_chunks * N_K * N_C - pid, P)):
            item = pid + i * P
            chunk = item // (N_K * N_C)
            k = (item // N_C % N_K) * BLOCK_K + tl.arange(0, BLOCK_K)
            c = (item % N_C) * BLOCK_C + tl.arange(0, BLOCK_C)
            first, n_meshes = _meshes_of_chunk(offsets_ptr, chunk, V, B, rows)
            for j in range(n_meshes):
                slot, lo, n = _slot(offsets_ptr, chunk, first + j, V, rows)
                if n > 0:
                    part = _reduce_rows(
                        x_ptr, mass_ptr, evecs_ptr, row_x, stride_x_c, stride_mass_v, row_evecs, stride_evecs_k,
                        lo, n, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C, DTYPE, PARTS, CARRY,
                    )  # fmt: skip
                    at = parts_ptr + slot.to(tl.int64) * (K * C) + k[:, None] * C + c[None, :]
                    tl.store(at, part, mask=(k[:, None] < K) & (c[None, :] < C))
        _grid_barrier(counter_ptr)
        n_items = B * ((K + BLOCK_FK - 1) // BLOCK_FK)
        for i in range(tl.cdiv(n_items - pid, P)):
            _finish(
                parts_ptr, offsets_ptr, evals_ptr, times, h_ptr, spectral_ptr, s_ptr, d_evals_ptr,
                d_times_parts_ptr, pid + i * P, n_items, V, rows, K, C, BLOCK_S, BLOCK_FK, BLOCK_FC,
            )  # fmt: skip
        if EXPAND or d_times_parts_ptr is not None:
            _grid_barrier(counter_ptr)
    if EXPAND:
        for i in range(tl.cdiv(n_out_chunks * N_C - pid, P)):
            item = pid + i * P
            c = (item % N_C) * BLOCK_C + tl.arange(0, BLOCK_C)
            first, n_meshes = _meshes_of_chunk(offsets_ptr, item // N_C, V, B, out_rows)
            for j in range(n_meshes):
                _, lo, n = _slot(offsets_ptr, item // N_C, first + j, V, out_rows)
                if n > 0:
                    _expand_rows(
                        y_ptr, out_mass_ptr, evecs_ptr, s_ptr, stride_mass_v, row_evecs, stride_evecs_k,
                        first + j, lo, n, c, K, C, BLOCK_OUT_V, BLOCK_K, BLOCK_C, DTYPE, PARTS, CARRY,
                    )  # fmt: skip
    if d_times_parts_ptr is not None:
        for i in range(tl.cdiv(C - pid, P)):
            _sum_row(d_times_parts_ptr, d_times_ptr, pid + i * P, n_items)
