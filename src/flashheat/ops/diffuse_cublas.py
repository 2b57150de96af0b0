"""The passes of `diffuse` with the matrix products of cuBLAS, for bases so wide that those are faster than the kernel.

It is separate from `diffuse_triton`, whose functions it mirrors, because all that is ours here is what stands between
two products: one small kernel, so that neither the decay nor its derivative costs a launch of its own.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from flashheat.ops.finish_triton import finish_kernel

_BLOCK_C = 8  # a sector of float32


def forward(
    x: Tensor, mass: Tensor | None, evals: Tensor | None, evecs: Tensor, times: Tensor | None, offsets: None,
    precision: str, *, expand: bool = True,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """`(y, s)` as `diffuse_triton.forward` returns them; how exactly float32 is multiplied is up to torch's setting."""
    s = _product(evecs.mT, _weigh(x, mass, evecs.dtype), torch.float32)
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
        e = _product(evecs, operand, g.dtype)
        e = e if mass is None else torch.mul(e, mass.unsqueeze(-1), out=e)
    out_evals = -(times * s * (g_hat if h is None else g_hat + h)).sum(-1) if d_evals else None
    return e, u, out_times, out_evals


def expand(s: Tensor, evecs: Tensor, offsets: None, precision: str) -> Tensor:
    """`evecs s`, in float32."""
    return _product(evecs, s.to(evecs.dtype), torch.float32)


def _weigh(x: Tensor, mass: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`mass * x` in `dtype`, multiplied in the wider of the two in one launch."""
    if mass is None:
        return x.to(dtype)
    return torch.mul(x, mass.unsqueeze(-1), out=torch.empty(x.shape, dtype=dtype, device=x.device))


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
    block = min(512, max(16, triton.next_power_of_2(n_rows)))
    with torch.cuda.device_of(x_hat):
        finish_kernel[(triton.cdiv(C, _BLOCK_C),)](
            x_hat, None if h is None else h.contiguous(), evals.contiguous(), times.contiguous(),
            spectral if d_times else None, s, None if operand is s else operand, out_times,
            n_rows, C, block, _BLOCK_C,
        )  # fmt: skip
    return s, operand, out_times
