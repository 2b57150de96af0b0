"""Launches the Triton kernel: allocates what it writes, lays batches flat, and keeps the binaries at hand.

It is separate from the kernel because all of it is plain PyTorch, run by every eager call and so kept short.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from flashheat.ops.diffuse_kernel_triton import diffuse_kernel
from flashheat.ops.launch import Cut, counter, cut, device_size
from flashheat.ops.tiles import Tile


def forward(
    x: Tensor, mass: Tensor | None, evals: Tensor | None, evecs: Tensor, times: Tensor | None, offsets: Tensor | None,
    precision: str, *, expand: bool = True, tile: Tile | None = None,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """`(y, s)` of `diffuse`; without `evals` no decay, without `mass` no mass; `y` is None unless `expand`.

    Args:
        x, mass, evals, evecs, times, offsets: as for `flashheat.diffuse`, checked.
        precision: how float32 is multiplied: "fp16x3" (as exact as float32), "bf16x3" (better than tf32), or "ieee"
            (slow; for tests). Half-precision features are multiplied as they are.
        expand: also compute `y = evecs s`.
        tile: block sizes, for sweeps; left out, those of the table.
    """
    p = _cut(evecs, x.shape[-1], offsets, precision, tile, x.dtype)
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if expand else None
    s = _empty_spectral(evecs, x.shape[-1], offsets)
    _launch(p, precision, x.dtype, evecs, offsets, x=x, mass=mass, evals=evals, times=times, y=y, s=s)
    return y, s


def backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, precision: str, *, expand: bool, d_times: bool, d_evals: bool,
    tile: Tile | None = None,
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """`(e, u, d_times, d_evals)` from the cotangents `g` of `y` and `h` of `s`.

        u = w * (evecs^T g + h)        e = mass * (evecs u)

    Args:
        mass: the row scale of `e`; None leaves it out.
        s: the spectrum that the forward pass returned.
        expand, d_times, d_evals: what to compute besides `u`; the rest is None.
    """
    p = _cut(evecs, g.shape[-1], offsets, precision, tile, g.dtype)
    e = torch.empty_like(g, memory_format=torch.contiguous_format) if expand else None
    u = torch.empty_like(s)
    sums = {
        "d_times": g.new_empty(g.shape[-1], dtype=torch.float32) if d_times else None,
        "d_evals": g.new_empty(evals.shape, dtype=torch.float32) if d_evals else None,
    }
    _launch(
        p, precision, g.dtype, evecs, offsets,
        x=g, evals=evals, times=times, h=h, spectral=s if d_times or d_evals else None, out_mass=mass, y=e, s=u, **sums,
    )  # fmt: skip
    return e, u, sums["d_times"], sums["d_evals"]


def expand(s: Tensor, evecs: Tensor, offsets: Tensor | None, precision: str, *, tile: Tile | None = None) -> Tensor:
    """`evecs s` for each mesh, in float32."""
    dtype = torch.promote_types(s.dtype, evecs.dtype)
    p = _cut(evecs, s.shape[-1], offsets, precision, tile, dtype)
    y = evecs.new_empty((*evecs.shape[:-1], s.shape[-1]), dtype=torch.float32)
    _launch(p, precision, dtype, evecs, offsets, y=y, s=s.contiguous())
    return y


def _cut(evecs: Tensor, C: int, offsets: Tensor | None, precision: str, tile: Tile | None, dtype: torch.dtype) -> Cut:
    precision = "half" if dtype in (torch.float16, torch.bfloat16) else precision
    B = offsets.shape[0] - 1 if offsets is not None else evecs.shape[0] if evecs.ndim == 3 else 1
    size = device_size(evecs.device)
    return cut(evecs.shape[-2], B, evecs.shape[-1], C, offsets is not None, precision, size, tile)


def _empty_spectral(evecs: Tensor, C: int, offsets: Tensor | None) -> Tensor:
    batch = evecs.shape[:-2] if offsets is None else (offsets.shape[0] - 1,)
    return evecs.new_empty((*batch, evecs.shape[-1], C), dtype=torch.float32)


def _launch(
    p: Cut, precision: str, dtype: torch.dtype, evecs: Tensor, offsets: Tensor | None, *, s: Tensor,
    x: Tensor | None = None, mass: Tensor | None = None, evals: Tensor | None = None, times: Tensor | None = None,
    out_mass: Tensor | None = None, h: Tensor | None = None, spectral: Tensor | None = None, y: Tensor | None = None,
    d_times: Tensor | None = None, d_evals: Tensor | None = None,
) -> None:  # fmt: skip
    """Lay a leading batch axis flat, allocate the workspace and launch on the device of `evecs`."""
    reduce = x is not None
    parts = _workspace(p, s, y) if reduce else None
    d_times_parts = None if d_times is None else s.new_empty(p.C * p.n_finish)
    evecs = evecs.flatten(0, -2)
    x = None if x is None else x.flatten(0, -2)
    mass, out_mass = (None if t is None else t.reshape(-1) for t in (mass, out_mass))
    stride_mass = next((m.stride(0) for m in (mass, out_mass) if m is not None), 1)
    strides = (*((1, 1) if x is None else x.stride()), stride_mass, *evecs.stride())
    rows = tuple(strides[i] if strides[i + 1] == 1 else 0 for i in (0, 3))  # known to the compiler where rows are dense
    strides = (1 if rows[0] else strides[0], *strides[1:3], 1 if rows[1] else strides[3], strides[4])
    half = dtype in (torch.float16, torch.bfloat16)
    depth = p.tile.depth or (0 if evecs.dtype is dtype is torch.bfloat16 else 1)
    tensors = (x, mass, _dense(evals), evecs, _dense(times), offsets, out_mass, _dense(h), spectral, y, s)
    sizes = (p.V, p.B, p.n_chunks, p.rows, p.n_out_chunks, p.out_rows)
    constants = (
        p.K, p.C, *rows, reduce, y is not None, *p.blocks, *_ARITHMETIC[dtype if half else precision], depth,
    )  # fmt: skip
    args = (
        *tensors, d_times, d_evals, parts, d_times_parts, counter(evecs.device) if reduce else None,
        *sizes, *strides, *constants,
    )  # fmt: skip
    key = (
        evecs.device, constants, p.tile, d_times is None, d_evals is None,
        *[(n == 1, n % 16 == 0, n < 2**31) for n in strides],
        *[None if t is None else (t.dtype, t.data_ptr() % 16 == 0) for t in tensors],
    )  # fmt: skip
    if not evecs.is_cuda or evecs.device.index == torch.cuda.current_device():
        _run(key, p, args, reduce)
        return
    with torch.cuda.device(evecs.device):
        _run(key, p, args, reduce)


def _run(key: tuple[Any, ...], p: Cut, args: tuple[Any, ...], cooperative: bool) -> None:
    if key in _compiled:
        _compiled[key][(p.n_programs, 1, 1)](*args)
        return
    n_programs = p.n_programs if args[3].is_cuda else 1
    kernel = diffuse_kernel[(n_programs,)](
        *args, num_warps=p.tile.num_warps, num_stages=p.tile.num_stages, launch_cooperative_grid=cooperative
    )
    if kernel is not None:  # the interpreter has none
        _compiled[key] = kernel


def _workspace(p: Cut, s: Tensor, y: Tensor | None) -> Tensor:
    """Room for the partial sums: inside `y` where they fit, since all are added up before `y` is written."""
    n = p.n_slots * p.K * p.C
    if y is not None and n * 4 <= y.numel() * y.element_size():
        return y.view(-1)[: n * 4 // y.element_size()].view(torch.float32)
    return s.new_empty(n)


# A launch of a binary that is at hand costs a third of one that goes through the compiler's own look-up.
_compiled: dict[tuple[Any, ...], Any] = {}


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


# DTYPE and PARTS of the kernel
_ARITHMETIC = {
    torch.float16: (tl.float16, 1),
    torch.bfloat16: (tl.bfloat16, 1),
    "bf16x3": (tl.bfloat16, 2),
    "fp16x3": (tl.float16, 2),
    "ieee": (tl.float32, 1),
}
