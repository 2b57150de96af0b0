"""Compiles the kernel for a card that is not here, and reads registers, spills and shared memory off the result."""

import re
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import get_cache_manager  # noqa: F401  (the first import decides the cache folder)

from flashheat.ops import diffuse_triton
from flashheat.ops.diffuse_kernel_triton import diffuse_kernel
from flashheat.ops.launch import DeviceSize, cut
from flashheat.ops.tiles import Tile

FORWARD = {"x_ptr", "mass_ptr", "evals_ptr", "evecs_ptr", "times_ptr", "y_ptr", "s_ptr", "parts_ptr", "counter_ptr"}
BACKWARD = (FORWARD - {"mass_ptr"}) | {"out_mass_ptr", "spectral_ptr", "d_times_ptr", "d_times_parts_ptr"}
_BLOCKS = ["BLOCK_V", "BLOCK_OUT_V", "BLOCK_K", "BLOCK_C", "BLOCK_S", "BLOCK_FK", "BLOCK_FC"]
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_STRIDES = ["stride_x_v", "stride_x_c", "stride_mass_v", "stride_evecs_v", "stride_evecs_k"]
_INTS = ["V", "B", "n_chunks", "rows", "n_out_chunks", "out_rows"]


@dataclass(frozen=True)
class Report:
    n_regs: int
    n_spills: int
    shared: int
    ptx: str
    sass_forms: dict[str, int]


def compile_kernel(
    tile: Tile, precision: str, dtype: str, *, capability: int = 90, K: int = 128, C: int = 128,
    pointers: set[str] = FORWARD, packed: bool = False, reduce: bool = True, expand: bool = True,
) -> Report:  # fmt: skip
    """Compile one binary; `dtype` is that of the features and the basis."""
    kernel = diffuse_kernel
    blocks = cut(1_000_000, 2 if packed else 1, K, C, packed, precision, DeviceSize(132, True), tile).blocks
    constants: dict[str, Any] = {
        "K": K, "C": C, "ROW_X": C, "ROW_EVECS": K, "REDUCE": reduce, "EXPAND": expand,
        **dict(zip(_BLOCKS, blocks, strict=True)),
        **dict(zip(("DTYPE", "PARTS"), diffuse_triton._ARITHMETIC[_HALF.get(dtype, precision)], strict=True)),
        "DEPTH": tile.depth or (0 if dtype == "bf16" else 1),
        **dict.fromkeys(_STRIDES, 1),
    }  # fmt: skip
    if packed:
        pointers = pointers | {"offsets_ptr"}
    signature, attrs = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name.endswith("_ptr") and name not in pointers:
            constants[name] = None
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = _type(name, dtype)
        if name.endswith("_ptr"):
            attrs[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, attrs)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tile.num_warps, "num_stages": tile.num_stages, "launch_cooperative_grid": reduce},
    )  # fmt: skip
    return _report(compiled)


def _type(name: str, dtype: str) -> str:
    if name in _INTS or name.startswith("stride"):
        return "i32"
    if name == "offsets_ptr":
        return "*i64"
    if name == "counter_ptr":
        return "*i32"
    return f"*{dtype}" if name in ("x_ptr", "evecs_ptr", "y_ptr") else "*fp32"


def _report(compiled: Any) -> Report:
    import os
    import subprocess
    import tempfile

    tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compiled.asm["cubin"])
        f.flush()
        usage = subprocess.run([f"{tools}/cuobjdump", "-res-usage", f.name], capture_output=True, text=True).stdout
        sass = subprocess.run([f"{tools}/cuobjdump", "-sass", f.name], capture_output=True, text=True).stdout
    regs = int(re.search(r"REG:(\d+)", usage).group(1))
    n_spills = len(re.findall(r"\b(?:STL|LDL)\b", sass))
    wgmma = re.findall(r"HGMMA\S* R\d+, (gdesc|R\d)", sass)
    forms = {
        "wgmma": len(wgmma),
        "wgmma_register": sum(w != "gdesc" for w in wgmma),
        "mma": len(re.findall("HMMA", sass)),
    }
    return Report(regs, n_spills, compiled.metadata.shared, compiled.asm["ptx"], forms)
