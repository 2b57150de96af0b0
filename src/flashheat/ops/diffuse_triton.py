"""Launches the Triton kernel: allocates what it writes, lays batches flat, and keeps the binaries at hand.

It is separate from the kernel because all of it is plain PyTorch, run by every eager call and so kept short: for small
meshes the host is the cost.
"""

from dataclasses import dataclass
from functools import lru_cache
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
        precision: how exactly float32 is multiplied: "highest" (as float32 itself), "high" (better than tf32), or
            "ieee" (slow; for tests). Half-precision features are multiplied as they are.
        expand: also compute `y = evecs s`.
        tile: block sizes, for sweeps; left out, those of the table.
    """
    p = _plan_of(evecs, x.shape[-1], x.dtype, offsets, precision, tile)
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if expand else None
    s = _empty_spectral(evecs, x.shape[-1], offsets)
    _launch(p, evecs, offsets, x=x, mass=mass, evals=evals, times=times, y=y, s=s)
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
    p = _plan_of(evecs, g.shape[-1], g.dtype, offsets, precision, tile)
    e = torch.empty_like(g, memory_format=torch.contiguous_format) if expand else None
    u = torch.empty_like(s)
    sums = {
        "d_times": g.new_empty(g.shape[-1], dtype=torch.float32) if d_times else None,
        "d_evals": g.new_empty(evals.shape, dtype=torch.float32) if d_evals else None,
    }
    _launch(
        p, evecs, offsets,
        x=g, evals=evals, times=times, h=h, spectral=s if d_times or d_evals else None, out_mass=mass, y=e, s=u, **sums,
    )  # fmt: skip
    return e, u, sums["d_times"], sums["d_evals"]


def expand(s: Tensor, evecs: Tensor, offsets: Tensor | None, precision: str, *, tile: Tile | None = None) -> Tensor:
    """`evecs s` for each mesh, in float32."""
    dtype = torch.promote_types(s.dtype, evecs.dtype)
    p = _plan_of(evecs, s.shape[-1], dtype, offsets, precision, tile)
    y = evecs.new_empty((*evecs.shape[:-1], s.shape[-1]), dtype=torch.float32)
    _launch(p, evecs, offsets, y=y, s=s.contiguous())
    return y


@dataclass(frozen=True)
class _Plan:
    """What a launch needs to know of its shapes and dtypes: the cut, the kernel's constants, and a number for those."""

    cut: Cut
    constants: tuple[Any, ...]
    number: int


def _plan_of(
    evecs: Tensor, C: int, dtype: torch.dtype, offsets: Tensor | None, precision: str, tile: Tile | None
) -> _Plan:
    B = offsets.shape[0] - 1 if offsets is not None else evecs.shape[0] if evecs.ndim == 3 else 1
    V, K = evecs.shape[-2:]
    return _plan(V, B, K, C, offsets is not None, dtype, evecs.dtype, precision, evecs.device, tile)


@lru_cache(4096)
def _plan(
    V: int, B: int, K: int, C: int, packed: bool, dtype: torch.dtype, basis_dtype: torch.dtype, precision: str,
    device: torch.device, tile: Tile | None,
) -> _Plan:  # fmt: skip
    p = cut(V, B, K, C, packed, "half" if dtype in _HALF else precision, device_size(device), tile)
    constants = constants_of(p, dtype, basis_dtype)
    number = _numbers.setdefault((device, K, C, constants, p.tile.num_warps), len(_numbers))
    return _Plan(p, constants, number)


_numbers: dict[tuple[Any, ...], int] = {}


def constants_of(p: Cut, dtype: torch.dtype, basis_dtype: torch.dtype) -> tuple[Any, ...]:
    """The kernel's last constants, from BLOCK_V on, for features and basis of two dtypes."""
    operands = p.tile.operands
    if operands == "pipelined" and not basis_dtype is dtype is torch.bfloat16:  # all others must be converted first
        operands = "carried"
    return (*p.blocks, *_ARITHMETIC[dtype if dtype in _HALF else p.tile.products], operands)


def _empty_spectral(evecs: Tensor, C: int, offsets: Tensor | None) -> Tensor:
    batch = evecs.shape[:-2] if offsets is None else (offsets.shape[0] - 1,)
    return evecs.new_empty((*batch, evecs.shape[-1], C), dtype=torch.float32)


def _launch(
    plan: _Plan, evecs: Tensor, offsets: Tensor | None, *, s: Tensor,
    x: Tensor | None = None, mass: Tensor | None = None, evals: Tensor | None = None, times: Tensor | None = None,
    out_mass: Tensor | None = None, h: Tensor | None = None, spectral: Tensor | None = None, y: Tensor | None = None,
    d_times: Tensor | None = None, d_evals: Tensor | None = None,
) -> None:  # fmt: skip
    """Lay a leading batch axis flat, allocate the workspace and launch on the device of `evecs`."""
    p, device = plan.cut, evecs.device
    reduce = x is not None
    if evecs.ndim == 3:
        evecs = evecs.flatten(0, 1)
        x = None if x is None else x.flatten(0, 1)
        mass, out_mass = (None if t is None else t.reshape(-1) for t in (mass, out_mass))
    stride_x_v, stride_x_c = (1, 1) if x is None else x.stride()
    stride_evecs_v, stride_evecs_k = evecs.stride()
    any_mass = out_mass if mass is None else mass
    stride_mass_v = 1 if any_mass is None else any_mass.stride(0)
    row_x = row_evecs = 0  # the stride of rows, known to the compiler where they are dense
    if stride_x_c == 1:
        row_x, stride_x_v = stride_x_v, 1
    if stride_evecs_k == 1:
        row_evecs, stride_evecs_v = stride_evecs_v, 1
    strides = (stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k)
    tensors = (
        x, mass, _dense(evals), evecs, _dense(times), _dense(offsets), out_mass, _dense(h), spectral,
        y, s, d_times, d_evals,
        _workspace(p, s, y) if reduce else None,
        s.new_empty(p.C * p.n_finish) if d_times is not None and p.B > 1 else None,
        counter(device) if reduce else None,
    )  # fmt: skip
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    key = (
        plan.number, row_x, row_evecs, reduce, y is None,
        *[(n == 1, n % 16 == 0, n < 2**31) for n in strides],
        *[t if t is None else t % 16 for t in pointers],
        *[None if t is None else t.dtype for t in tensors[:10]],
    )  # fmt: skip
    sizes = (p.V, p.B, p.n_chunks, p.rows, p.n_out_chunks, p.out_rows)
    kernel = _compiled.get(key)
    if kernel is None:
        constants = (p.K, p.C, row_x, row_evecs, reduce, y is not None, *plan.constants)
        _compile(key, plan, device, (*tensors, *sizes, *strides, *constants))
        return
    args = (*pointers, *sizes, *strides, p.K, p.C, row_x, row_evecs, reduce, y is not None, *plan.constants)
    grid, stream = (p.n_programs, 1, 1), torch._C._cuda_getCurrentRawStream(device.index)
    if device.index == torch.cuda.current_device():
        kernel[grid](*args, stream=stream)
        return
    with torch.cuda.device(device):
        kernel[grid](*args, stream=stream)


def _compile(key: tuple[Any, ...], plan: _Plan, device: torch.device, args: tuple[Any, ...]) -> None:
    """The first launch of a binary. The interpreter has none: one program owns all chunks, every time."""
    tile = plan.cut.tile
    options = {
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "launch_cooperative_grid": args[0] is not None,
    }
    if device.type != "cuda":
        diffuse_kernel[(1,)](*args, **options)
        return
    with torch.cuda.device(device):
        _compiled[key] = diffuse_kernel[(plan.cut.n_programs,)](*args, **options)


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


_HALF = (torch.float16, torch.bfloat16)
# DTYPE and PARTS of the kernel
_ARITHMETIC = {
    torch.float16: (tl.float16, 1),
    torch.bfloat16: (tl.bfloat16, 1),
    "bf16x3": (tl.bfloat16, 2),
    "bf16x6": (tl.bfloat16, 3),
    "fp16x3": (tl.float16, 2),
    "ieee": (tl.float32, 1),
}
