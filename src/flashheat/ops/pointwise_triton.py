"""The Triton kernels around the products of cuBLAS: the mass of one operand, and the decay between two products.

They are separate from `diffuse_cublas`, which launches them, as `diffuse_kernel_triton` is from `diffuse_triton`.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows"])
def finish_kernel(
    x_hat_ptr, h_ptr, evals_ptr, times_ptr, spectral_ptr, s_ptr, operand_ptr, d_times_ptr, n_rows,
    C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals * times) (x_hat + h)`, also in the dtype of `operand`, and `d_times = -sum of evals spectral
    (x_hat + h)`; a program owns some channels, and of the rows, which are the k of every mesh, a share, or all where
    they are to be summed."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for first in range(tl.program_id(1) * BLOCK_R, n_rows, tl.num_programs(1) * BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        at = r.to(tl.int64)[:, None] * C + c[None, :]
        mask = (r[:, None] < n_rows) & (c[None, :] < C)
        evals = tl.load(evals_ptr + r, mask=r < n_rows, other=0.0).to(tl.float32)
        x_hat = tl.load(x_hat_ptr + at, mask=mask, other=0.0)
        if h_ptr is not None:
            x_hat += tl.load(h_ptr + at, mask=mask, other=0.0)
        s = tl.exp2(-1.4426950408889634 * evals[:, None] * times[None, :]) * x_hat
        tl.store(s_ptr + at, s, mask=mask)
        if operand_ptr is not None:
            tl.store(operand_ptr + at, s.to(operand_ptr.dtype.element_ty), mask=mask)
        if d_times_ptr is not None:
            total += evals[:, None] * x_hat * tl.load(spectral_ptr + at, mask=mask, other=0.0)
    if d_times_ptr is not None:
        tl.store(d_times_ptr + c, -tl.sum(total, 0), mask=c < C)


@triton.jit(do_not_specialize=["n_rows"])
def weigh_kernel(
    x_ptr, mass_ptr, y_ptr, n_rows, stride_x_v, stride_x_c, stride_mass_v,
    C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`y[v, c] = mass[v] x[v, c]`; a program owns some rows of some channels."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_V
    v = tl.arange(0, BLOCK_V)
    c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    mask = (row + v < n_rows)[:, None] & (c[None, :] < C)
    mass = tl.load(mass_ptr + (row + v) * stride_mass_v, mask=row + v < n_rows, other=0.0).to(tl.float32)
    at = x_ptr + row * stride_x_v + v[:, None] * stride_x_v + c[None, :] * stride_x_c
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    at_y = y_ptr + row * C + v[:, None] * C + c[None, :]
    tl.store(at_y, (mass[:, None] * x).to(y_ptr.dtype.element_ty), mask=mask)
