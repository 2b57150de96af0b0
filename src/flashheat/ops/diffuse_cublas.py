"""The passes of `diffuse` with the matrix products of cuBLAS, for bases so wide that those are faster than the kernel.

It is separate from `diffuse_triton`, whose functions it mirrors, because all that is ours here is what stands around
the products: one small kernel between two of them, so that neither the decay nor its derivative costs a launch of its
own, and one for the mass, which takes the narrower of the two operands, the basis or the features.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from flashheat.ops.pointwise_triton import finish_kernel, weigh_kernel


def forward(
    x: Tensor, mass: Tensor | None, evals: Tensor | None, evecs: Tensor, times: Tensor | None, offsets: None,
    precision: str, *, expand: bool = True,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """`(y, s)` as `diffuse_triton.forward` returns them; how exactly float32 is multiplied is up to torch's setting."""
    x = x.to(evecs.dtype)
    if _is_basis_narrower(evecs, x):
        s = _product(_weigh(evecs, mass).mT, x, torch.float32)
    else:
        s = _product(evecs.mT, _weigh(x, mass), torch.float32)
    operand = s.to(evecs.dtype) if expand and (evals is None or times is None) else None
    if evals is not None and times is not None:
        s, operand, _ = _finish(s, None, evals, times, None, evecs.dtype, d_times=False)
    return None if operand is None or not expand else _product(evecs, operand, x.dtype), s


def backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor, offsets: None,
    s: Tensor, precision: str, *, expand: bool, d_times: bool, d_evals: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """`(e, u, d_times, d_evals)` as `diffuse_triton.backward` returns them."""
    g_hat = _product(evecs.mT, g.to(evecs.dtype), torch.float32)
    u, operand, out_times = _finish(g_hat, h, evals, times, s, evecs.dtype, d_times=d_times)
    e = None
    if expand:
        if _is_basis_narrower(evecs, g):
            e = _product(_weigh(evecs, mass), operand, g.dtype)
        else:
            e = _weigh(_product(evecs, operand, g.dtype), mass)
    out_evals = -(times * s * (g_hat if h is None else g_hat + h)).sum(-1) if d_evals else None
    return e, u, out_times, out_evals


def expand(s: Tensor, evecs: Tensor, offsets: None, precision: str) -> Tensor:
    """`evecs s`, in float32."""
    return _product(evecs, s.to(evecs.dtype), torch.float32)


def _is_basis_narrower(evecs: Tensor, features: Tensor) -> bool:
    return evecs.shape[-1] < features.shape[-1]


def _weigh(x: Tensor, mass: Tensor | None) -> Tensor:
    """`mass * x` in the dtype of `x`; PyTorch's own product takes up to four times as long where mass is broadcast."""
    if mass is None:
        return x
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, mass, C = (x if x.ndim == 2 else x.flatten(0, 1)), mass.reshape(-1), x.shape[-1]
    block_c = min(512, max(16, triton.next_power_of_2(C)))  # whole rows: the fastest, as measured
    block_v = 1024 // block_c
    with torch.cuda.device_of(x):
        weigh_kernel[(triton.cdiv(rows.shape[0], block_v), triton.cdiv(C, block_c))](
            rows, mass, y, rows.shape[0], *rows.stride(), mass.stride(0), C, block_v, block_c
        )
    return y


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`a b`, accumulated in float32, in `dtype`; autocast may not choose another."""
    options: dict[str, Any] = {} if a.dtype == dtype else {"out_dtype": dtype}
    with torch.autocast(a.device.type, enabled=False):
        return (torch.bmm if a.ndim == 3 else torch.mm)(a, b, **options)


def _finish(
    x_hat: Tensor, h: Tensor | None, evals: Tensor, times: Tensor, spectral: Tensor | None, dtype: torch.dtype, *,
    d_times: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`s = exp(-evals * times) (x_hat + h)` in float32 and in `dtype`, and the derivative of `times`.

    d_times = -sum of evals spectral (x_hat + h), over the basis and all meshes of a batch.
    """
    n_rows, C = evals.numel(), times.shape[0]
    s = torch.empty_like(x_hat)
    operand = s if dtype == s.dtype else torch.empty_like(x_hat, dtype=dtype)
    out_times = s.new_empty(C) if d_times else None
    block_r, block_c = (512, 8) if d_times else (16, 64)  # 8 floats are a sector of the memory
    n_shares = 1 if d_times else min(1024, triton.cdiv(n_rows, block_r))
    with torch.cuda.device_of(x_hat):
        finish_kernel[(triton.cdiv(C, block_c), n_shares)](
            x_hat, None if h is None else h.contiguous(), evals.contiguous(), times.contiguous(),
            spectral if d_times else None, s, None if operand is s else operand, out_times,
            n_rows, C, block_r, block_c,
        )  # fmt: skip
    return s, operand, out_times
