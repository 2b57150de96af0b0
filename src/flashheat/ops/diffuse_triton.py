"""Launches the Triton kernel: allocates what it writes, lays batches flat, and keeps the binaries at hand.

It is separate from the kernel because all of it is plain PyTorch, run by every eager call and so kept short: for small
meshes the host is the cost.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
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
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if expand else None
    s = _empty_spectral(evecs, x.shape[-1], offsets)
    _launch(precision, tile, evecs, offsets, x=x, mass=mass, evals=evals, times=times, y=y, s=s)
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
    e = torch.empty_like(g, memory_format=torch.contiguous_format) if expand else None
    u = torch.empty_like(s)
    sums = {
        "d_times": g.new_empty(g.shape[-1], dtype=torch.float32) if d_times else None,
        "d_evals": g.new_empty(evals.shape, dtype=torch.float32) if d_evals else None,
    }
    _launch(
        precision, tile, evecs, offsets,
        x=g, evals=evals, times=times, h=h, spectral=s if d_times or d_evals else None, out_mass=mass, y=e, s=u, **sums,
    )  # fmt: skip
    return e, u, sums["d_times"], sums["d_evals"]


def expand(s: Tensor, evecs: Tensor, offsets: Tensor | None, precision: str, *, tile: Tile | None = None) -> Tensor:
    """`evecs s` for each mesh, in float32."""
    y = evecs.new_empty((*evecs.shape[:-1], s.shape[-1]), dtype=torch.float32)
    _launch(precision, tile, evecs, offsets, y=y, s=s.contiguous())
    return y


Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]] | None  # dtype, shape, stride


def _launch(
    precision: str, tile: Tile | None, evecs: Tensor, offsets: Tensor | None, *, s: Tensor,
    x: Tensor | None = None, mass: Tensor | None = None, evals: Tensor | None = None, times: Tensor | None = None,
    out_mass: Tensor | None = None, h: Tensor | None = None, spectral: Tensor | None = None, y: Tensor | None = None,
    d_times: Tensor | None = None, d_evals: Tensor | None = None,
) -> None:  # fmt: skip
    """Lay a leading batch axis flat, allocate the workspace and launch on the device of `evecs`."""
    device, B = evecs.device, 1
    if offsets is not None:
        B, offsets = offsets.shape[0] - 1, offsets.contiguous()
    elif evecs.ndim == 3:
        B, evecs = evecs.shape[0], evecs.flatten(0, 1)
        x = None if x is None else x.flatten(0, 1)
        mass, out_mass = (None if t is None else t.reshape(-1) for t in (mass, out_mass))
    inputs = (x, mass, _dense(evals), evecs, _dense(times), offsets, out_mass, _dense(h), spectral)
    layouts = [None if t is None else (t.dtype, t.shape, t.stride()) for t in inputs]
    outputs = (y is not None, d_times is not None, d_evals is not None)
    plan = _plan(precision, tile, device, B, s.shape[-1], s.dtype, outputs, *layouts)
    tensors = (
        *inputs, y, s, d_times, d_evals,
        None if plan.n_parts is None else y if plan.parts_in_y else s.new_empty(plan.n_parts),
        None if plan.n_shares is None else s.new_empty(plan.n_shares),
        None if x is None else counter(device),
    )  # fmt: skip
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    aligned = tuple([t is None or t % 16 == 0 for t in pointers])
    kernel = plan.binaries.get(aligned)
    if kernel is None:
        _first_launch(plan, device, aligned, tensors)
        return
    grid, stream = (plan.cut.n_programs, 1, 1), torch._C._cuda_getCurrentRawStream(device.index)
    if device.index == torch.cuda.current_device():
        kernel[grid](*pointers, *plan.arguments, stream=stream)
        return
    with torch.cuda.device(device):
        kernel[grid](*pointers, *plan.arguments, stream=stream)


@dataclass(frozen=True)
class _Plan:
    """What the layouts of the tensors decide about a launch.

    `arguments` are those of the kernel after its pointers. `n_parts` elements of workspace hold the partial sums, if
    `parts_in_y` in the memory of `y`, since all are added up before `y` is written; `n_shares` hold those of `d_times`.
    `binaries` are the compiled kernels by the alignment of the pointers; plans that need the same ones share them.
    """

    cut: Cut
    arguments: tuple[Any, ...]
    n_parts: int | None
    parts_in_y: bool
    n_shares: int | None
    binaries: dict[tuple[bool, ...], Any]


_binaries: dict[tuple[Any, ...], dict[tuple[bool, ...], Any]] = {}


@lru_cache(4096)
def _plan(
    precision: str, tile: Tile | None, device: torch.device, B: int, C: int, s_dtype: torch.dtype,
    outputs: tuple[bool, bool, bool], *layouts: Layout,
) -> _Plan:  # fmt: skip
    x, mass, _, evecs, _, offsets, out_mass, _, _ = layouts
    assert evecs is not None  # every launch has a basis
    basis_dtype, (n_rows, K), (stride_evecs_v, stride_evecs_k) = evecs
    expand, d_times, _ = outputs
    dtype = torch.promote_types(s_dtype, basis_dtype) if x is None else x[0]
    V = n_rows if offsets is not None else n_rows // B
    precision = "half" if dtype in _HALF else precision
    p = cut(V, B, K, C, offsets is not None, precision, device_size(device), tile)
    stride_x_v, stride_x_c = (1, 1) if x is None else x[2]
    any_mass = mass or out_mass
    stride_mass_v = 1 if any_mass is None else any_mass[2][0]
    row_x = row_evecs = 0  # the stride of rows, known to the compiler where they are dense
    if stride_x_c == 1:
        row_x, stride_x_v = stride_x_v, 1
    if stride_evecs_k == 1:
        row_evecs, stride_evecs_v = stride_evecs_v, 1
    sizes = (p.V, p.B, p.n_chunks, p.rows, p.n_out_chunks, p.out_rows)
    strides = (stride_x_v, stride_x_c, stride_mass_v, stride_evecs_v, stride_evecs_k)
    constants = (K, C, row_x, row_evecs, x is not None, expand, *constants_of(p, dtype, basis_dtype))
    binary = (
        device, p.tile, constants, outputs, s_dtype, *[(n == 1, n % 16 == 0, n < 2**31) for n in strides],
        *[None if layout is None else layout[0] for layout in layouts],
    )  # fmt: skip
    n_parts = None if x is None else p.n_slots * K * C
    parts_in_y = n_parts is not None and expand and n_parts * 4 <= n_rows * C * dtype.itemsize
    n_shares = C * p.n_finish if d_times and B > 1 else None
    return _Plan(p, (*sizes, *strides, *constants), n_parts, parts_in_y, n_shares, _binaries.setdefault(binary, {}))


def forget_plans() -> None:
    """Choose tiles anew from here on: of what was tuned since."""
    cut.cache_clear()
    _plan.cache_clear()


def _first_launch(plan: _Plan, device: torch.device, aligned: tuple[bool, ...], tensors: tuple[Any, ...]) -> None:
    """Launch by the compiler's own look-up, which takes three times as long, and keep the binary for the next time.

    The interpreter has no binaries: one program owns all chunks, every time.
    """
    tile = plan.cut.tile
    options = {
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "launch_cooperative_grid": tensors[0] is not None,
    }
    if plan.parts_in_y:
        tensors = (*tensors[:_PARTS], triton.reinterpret(tensors[_PARTS], tl.float32), *tensors[_PARTS + 1 :])
    if device.type != "cuda":
        diffuse_kernel[(1,)](*tensors, *plan.arguments, **options)
        return
    with torch.cuda.device(device):
        plan.binaries[aligned] = diffuse_kernel[(plan.cut.n_programs,)](*tensors, *plan.arguments, **options)


def constants_of(p: Cut, dtype: torch.dtype, basis_dtype: torch.dtype) -> tuple[Any, ...]:
    """The kernel's last constants, from BLOCK_V on, for features and basis of two dtypes."""
    operands = p.tile.operands
    if operands == "pipelined" and not basis_dtype is dtype is torch.bfloat16:  # all others must be converted first
        operands = "carried"
    return (*p.blocks, *_ARITHMETIC[dtype if dtype in _HALF else p.tile.products], operands)


def _empty_spectral(evecs: Tensor, C: int, offsets: Tensor | None) -> Tensor:
    batch = evecs.shape[:-2] if offsets is None else (offsets.shape[0] - 1,)
    return evecs.new_empty((*batch, evecs.shape[-1], C), dtype=torch.float32)


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


_PARTS = 13  # the place of the partial sums among the kernel's arguments
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
