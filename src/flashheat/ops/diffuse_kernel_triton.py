"""The Triton kernel behind `diffuse`, `to_basis` and `from_basis`.

One cooperative launch runs up to three phases with a grid barrier between them, so that a small mesh pays for one
launch and the end of the basis is still in the cache when the expansion walks it backwards:

    reduce:  parts[slot] = evecs^T (mass * x)    over the rows of one slot (what one mesh has in one chunk)
    finish:  s           = exp(-evals * times) * sum over the slots of a mesh of parts, in a fixed order
    expand:  y           = evecs s

The backward pass is the same kernel on the cotangents: no mass in the reduction, the mass as a row scale of the
expansion, the derivative of `evals` in the finish and that of `times` after it.
"""

import triton
import triton.language as tl

from flashheat.ops.products_triton import add_product, product, split
from flashheat.ops.slots_triton import count_slots, grid_barrier, mesh_rows, meshes_of_chunk, slot_first, slot_of


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
    """The mass of the `n` rows from `row` on; anything where there is no mass, to be left out by `_weigh`."""
    v = tl.arange(0, BLOCK_V)
    if mass_ptr is not None:
        mass = tl.load(mass_ptr + row * stride_mass_v + v * stride_mass_v, mask=v < n, other=0.0).to(tl.float32)
    else:
        mass = tl.zeros((BLOCK_V,), tl.float32)
    return mass


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
    return basis, x, _load_mass(mass_ptr, stride_mass_v, row, n, BLOCK_V)


@triton.jit
def _reduce_rows(
    x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k, lo, n, k, c,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr, PARTS: tl.constexpr, OPERANDS: tl.constexpr,
):  # fmt: skip
    """`sum over lo <= v < lo + n of evecs[v, k] mass[v] x[v, c]`.

    OPERANDS "carried": each step multiplies the tile of the step before: so the loads run beside the products, and the
    compiler takes both operands from shared memory (it does so for values carried round a loop; operands of wgmma
    computed in the same step it would pass in registers, and fetch the basis four bytes at a time).
    "registers": each step multiplies its own tile, transposed, with so few channels that the compiler takes the older
    mma, whose operands may be registers: no step is lost, which is what counts where there are one or two.
    "pipelined": operands need no work; for those the compiler's own pipeline is the best.
    """
    MASS: tl.constexpr = mass_ptr is not None
    if OPERANDS == "registers":
        acc = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    else:
        acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    if OPERANDS == "carried":
        a = split(tl.zeros((BLOCK_V, BLOCK_K), tl.float32), 0, DTYPE, PARTS)  # the first step multiplies nothing, while
        b = split(tl.zeros((BLOCK_V, BLOCK_C), tl.float32), 0, DTYPE, PARTS)  # its loads are on the way
        for i in range(0, n + BLOCK_V, BLOCK_V):
            basis, x, mass = _load_step(
                x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k,
                lo + i, n - i, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C,
            )  # fmt: skip
            acc = add_product(a, b, acc, PARTS)
            a = split(basis, 0, DTYPE, PARTS)
            b = split(_weigh(x, mass, MASS), 0, DTYPE, PARTS)
    else:
        for i in range(0, n, BLOCK_V):
            basis, x, mass = _load_step(
                x_ptr, mass_ptr, evecs_ptr, stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k,
                lo + i, n - i, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C,
            )  # fmt: skip
            a = split(basis, 0, DTYPE, PARTS)
            b = split(_weigh(x, mass, MASS), 0, DTYPE, PARTS)
            acc = add_product(b, a, acc, PARTS) if OPERANDS == "registers" else add_product(a, b, acc, PARTS)
    if OPERANDS == "registers":
        acc = tl.trans(acc)
    return acc


@triton.jit
def _load_spectral(s_ptr, b, k, c, K: tl.constexpr, C: tl.constexpr):
    """`s[b, k, c]`, past the first cache level: another program wrote it."""
    at = s_ptr + b.to(tl.int64) * K * C + k[:, None] * C + c[None, :]
    return tl.load(at, mask=(k[:, None] < K) & (c[None, :] < C), other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def _store_rows(y_ptr, acc, row, n, c, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr):
    """`y[v, c] = acc` for the `n` rows from `row` on."""
    v = tl.arange(0, BLOCK_V)
    mask = v[:, None] < n
    if C % BLOCK_C != 0:
        mask = mask & (c[None, :] < C)
    tl.store(y_ptr + row * C + v[:, None] * C + c[None, :], acc.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _expand_rows(
    y_ptr, mass_ptr, evecs_ptr, s_ptr, stride_mass_v, stride_evecs_v, stride_evecs_k, b, lo, n, c,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr, PARTS: tl.constexpr, OPERANDS: tl.constexpr,
):  # fmt: skip
    """`y[v, c] = mass[v] sum over k of evecs[v, k] s[k, c]`, last rows first; OPERANDS as in the reduction.

    The mass is loaded ahead of its use: waiting for it before each store costs up to a sixth of a launch.
    """
    MASS: tl.constexpr = mass_ptr is not None
    FULL: tl.constexpr = K % BLOCK_K == 0
    k = tl.arange(0, BLOCK_K)
    n_tiles = tl.cdiv(n, BLOCK_V)
    last = (n_tiles - 1) * BLOCK_V
    mass = _load_mass(mass_ptr, stride_mass_v, lo + last, n - last, BLOCK_V)
    if K <= BLOCK_K:
        s = split(_load_spectral(s_ptr, b, k, c, K, C), 0, DTYPE, PARTS)
    if K <= BLOCK_K and OPERANDS == "carried":
        basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + last, n - last, k, K, BLOCK_V, FULL)
        a = split(basis, 1, DTYPE, PARTS)
        for j in range(n_tiles):
            i = last - j * BLOCK_V
            more = tl.where(i > 0, BLOCK_V, 0)
            basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i - BLOCK_V, more, k, K, BLOCK_V, FULL)
            next_mass = _load_mass(mass_ptr, stride_mass_v, lo + i - BLOCK_V, more, BLOCK_V)
            acc = _weigh(product(a, s, PARTS), mass, MASS)
            _store_rows(y_ptr, acc, lo + i, n - i, c, C, BLOCK_V, BLOCK_C)
            a = split(basis, 1, DTYPE, PARTS)
            mass = next_mass
    elif K <= BLOCK_K:
        for j in range(n_tiles):
            i = last - j * BLOCK_V
            basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k, K, BLOCK_V, FULL)
            next_mass = _load_mass(mass_ptr, stride_mass_v, lo + i - BLOCK_V, tl.where(i > 0, BLOCK_V, 0), BLOCK_V)
            acc = _weigh(product(split(basis, 1, DTYPE, PARTS), s, PARTS), mass, MASS)
            _store_rows(y_ptr, acc, lo + i, n - i, c, C, BLOCK_V, BLOCK_C)
            mass = next_mass
    else:
        for j in range(n_tiles):
            i = last - j * BLOCK_V
            basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k, K, BLOCK_V, FULL)
            mass = _load_mass(mass_ptr, stride_mass_v, lo + i, n - i, BLOCK_V)
            a = split(basis, 1, DTYPE, PARTS)
            s = split(_load_spectral(s_ptr, b, k, c, K, C), 0, DTYPE, PARTS)
            acc = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
            for k0 in range(BLOCK_K, K + BLOCK_K, BLOCK_K):
                basis = _load_tile(evecs_ptr, stride_evecs_v, stride_evecs_k, lo + i, n - i, k0 + k, K, BLOCK_V, False)
                spectral = _load_spectral(s_ptr, b, k0 + k, c, K, C)
                acc += product(a, s, PARTS)
                a = split(basis, 1, DTYPE, PARTS)
                s = split(spectral, 0, DTYPE, PARTS)
            _store_rows(y_ptr, _weigh(acc, mass, MASS), lo + i, n - i, c, C, BLOCK_V, BLOCK_C)


@triton.jit
def _finish(
    parts_ptr, offsets_ptr, evals_ptr, times, h_ptr, spectral_ptr, s_ptr, d_evals_ptr, d_times_parts_ptr,
    item, n_items, V, rows,
    K: tl.constexpr, C: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_FK: tl.constexpr, BLOCK_FC: tl.constexpr,
):  # fmt: skip
    """Some rows k of one mesh, all channels: `s = exp(-evals * times) (sum of parts + h)`. On request also

    `d_evals[k] = -sum over c of times s_fwd g_hat` and a share of `d_times[c] = -sum over k of evals s_fwd g_hat`.
    """
    b = item // tl.cdiv(K, BLOCK_FK)
    k = (item % tl.cdiv(K, BLOCK_FK)) * BLOCK_FK + tl.arange(0, BLOCK_FK)
    c = tl.arange(0, BLOCK_FC)
    mask = (k[:, None] < K) & (c[None, :] < C)
    kc = k[:, None] * C + c[None, :]
    start, stop = mesh_rows(offsets_ptr, b, V)
    first = slot_first(offsets_ptr, b, V, rows)
    n_slots = count_slots(offsets_ptr, start, stop, rows)
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
        if d_evals_ptr is not None:
            d_evals = -tl.sum(spectral * x_hat * times[None, :], 1)
            tl.store(d_evals_ptr + b.to(tl.int64) * K + k, d_evals, mask=k < K)
        if d_times_parts_ptr is not None:
            d_times = -tl.sum(spectral * x_hat * evals[:, None], 0)
            tl.store(d_times_parts_ptr + c.to(tl.int64) * n_items + item, d_times, mask=c < C)


@triton.jit
def _sum_shares(parts_ptr, d_times_ptr, c, n, C: tl.constexpr):
    """`d_times[c]` of several meshes: the sum of all shares, in a fixed order."""
    total = tl.zeros((c.shape[0], 256), tl.float32)
    for i in range(0, n, 256):
        j = i + tl.arange(0, 256)
        at = parts_ptr + c.to(tl.int64)[:, None] * n + j[None, :]
        total += tl.load(at, mask=(c[:, None] < C) & (j[None, :] < n), other=0.0, cache_modifier=".cg")
    tl.store(d_times_ptr + c, tl.sum(total, 1), mask=c < C)


@triton.jit
def _times_of_one_mesh(
    spectral_ptr, s_ptr, evals_ptr, times_ptr, d_times_ptr, c, K: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """`d_times[c]` of a single mesh, without a buffer of shares: `g_hat` is what the finish decayed to `s`.

    Where the decay is below 1e-30, so is the term, and it counts as zero; a NaN stays one.
    """
    times = tl.load(times_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_K, c.shape[0]), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        evals = tl.load(evals_ptr + k, mask=k < K, other=0.0).to(tl.float32)[:, None]
        mask = (k[:, None] < K) & (c[None, :] < C)
        spectral = tl.load(spectral_ptr + k[:, None] * C + c[None, :], mask=mask, other=0.0)
        s = tl.load(s_ptr + k[:, None] * C + c[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        decay = tl.exp2(-1.4426950408889634 * evals * times[None, :])
        total += tl.where(decay <= 1e-30, 0.0, -evals * spectral * (s / decay))
    tl.store(d_times_ptr + c, tl.sum(total, 0), mask=c < C)


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
    DTYPE: tl.constexpr, PARTS: tl.constexpr, OPERANDS: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals * times) (evecs^T (mass * x) + h)`, then `y = out_mass * (evecs s)`.

    A program owns every P-th item of each phase: (chunk, k block, c block); (mesh, rows k), then channels of `d_times`;
    (chunk, c block). Sums are split by slots and added in a fixed order.
    """
    row_x = ROW_X if ROW_X else stride_x_v
    row_evecs = ROW_EVECS if ROW_EVECS else stride_evecs_v
    pid = tl.program_id(0)
    P = tl.num_programs(0)
    N_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    N_K: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    BLOCK_T: tl.constexpr = 8  # channels of d_times that one program adds up
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
            first, n_meshes = meshes_of_chunk(offsets_ptr, chunk, V, B, rows)
            for j in range(n_meshes):
                slot, lo, n = slot_of(offsets_ptr, chunk, first + j, V, rows)
                if n > 0:
                    part = _reduce_rows(
                        x_ptr, mass_ptr, evecs_ptr, row_x, stride_x_c, stride_mass_v, row_evecs, stride_evecs_k,
                        lo, n, k, c, K, C, BLOCK_V, BLOCK_K, BLOCK_C, DTYPE, PARTS, OPERANDS,
                    )  # fmt: skip
                    at = parts_ptr + slot.to(tl.int64) * (K * C) + k[:, None] * C + c[None, :]
                    tl.store(at, part, mask=(k[:, None] < K) & (c[None, :] < C))
        grid_barrier(counter_ptr)
        n_items = B * ((K + BLOCK_FK - 1) // BLOCK_FK)
        for i in range(tl.cdiv(n_items - pid, P)):
            _finish(
                parts_ptr, offsets_ptr, evals_ptr, times, h_ptr, spectral_ptr, s_ptr, d_evals_ptr,
                d_times_parts_ptr, pid + i * P, n_items, V, rows, K, C, BLOCK_S, BLOCK_FK, BLOCK_FC,
            )  # fmt: skip
        if EXPAND or d_times_ptr is not None:
            grid_barrier(counter_ptr)
        if d_times_ptr is not None:  # by the last programs, which often have nothing to expand
            for i in range(tl.cdiv((C + BLOCK_T - 1) // BLOCK_T - (P - 1 - pid), P)):
                c = (P - 1 - pid + i * P) * BLOCK_T + tl.arange(0, BLOCK_T)
                if d_times_parts_ptr is not None:
                    _sum_shares(d_times_parts_ptr, d_times_ptr, c, n_items, C)
                else:
                    _times_of_one_mesh(spectral_ptr, s_ptr, evals_ptr, times_ptr, d_times_ptr, c, K, C, BLOCK_K)
    if EXPAND:
        for i in range(tl.cdiv(n_out_chunks * N_C - pid, P)):
            item = pid + i * P
            c = (item % N_C) * BLOCK_C + tl.arange(0, BLOCK_C)
            first, n_meshes = meshes_of_chunk(offsets_ptr, item // N_C, V, B, out_rows)
            for j in range(n_meshes):
                _, lo, n = slot_of(offsets_ptr, item // N_C, first + j, V, out_rows)
                if n > 0:
                    _expand_rows(
                        y_ptr, out_mass_ptr, evecs_ptr, s_ptr, stride_mass_v, row_evecs, stride_evecs_k,
                        first + j, lo, n, c, K, C, BLOCK_OUT_V, BLOCK_K, BLOCK_C, DTYPE, PARTS, OPERANDS,
                    )  # fmt: skip
