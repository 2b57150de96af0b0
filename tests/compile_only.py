"""Compiles the kernel for a card that is not here, and reads registers, spills and shared memory off the result.

    python -m tests.compile_only out.jsonl    # every shipped tile for every card, with the triton of this Python

`make test-compile` does so with both versions of Triton; `make test` compiles the default tiles and holds the log to
the kernel and the table that it was made of.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flashheat.ops import diffuse_kernel_triton, diffuse_triton, products_triton, slots_triton, tiles
from flashheat.ops.diffuse_kernel_triton import diffuse_kernel
from flashheat.ops.launch import DeviceSize, cut
from flashheat.ops.tiles import Tile

LOG = Path(__file__).parents[1] / "benchmarks" / "results" / "compile_only.jsonl"
# Compute capability -> shared memory of one block, bytes
CARDS = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
CLASSES = {"highest": "fp32", "high": "fp32", "half": "bf16"}  # precision class -> dtype of the features

FORWARD = {"x_ptr", "mass_ptr", "evals_ptr", "evecs_ptr", "times_ptr", "y_ptr", "s_ptr", "parts_ptr", "counter_ptr"}
BACKWARD = (FORWARD - {"mass_ptr"}) | {"out_mass_ptr", "spectral_ptr", "d_times_ptr"}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
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
    tile: Tile, dtype: str, *, capability: int = 90, K: int = 128, C: int = 128,
    pointers: set[str] = FORWARD, packed: bool = False, reduce: bool = True, expand: bool = True,
) -> Report:  # fmt: skip
    """Compile one binary; `dtype` is that of the features and the basis."""
    kernel = diffuse_kernel
    p = cut(1_000_000, 2 if packed else 1, K, C, packed, "", DeviceSize(132, True), tile)
    last = diffuse_triton.constants_of(p, _DTYPES[dtype], _DTYPES[dtype])
    constants: dict[str, Any] = {
        "K": K, "C": C, "ROW_X": C, "ROW_EVECS": K, "REDUCE": reduce, "EXPAND": expand,
        **dict(zip(kernel.arg_names[-len(last) :], last, strict=True)),
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


def compile_aligned(kernel: Any, capability: int, types: dict[str, str], constants: dict[str, Any]) -> Report:
    """Compile any other kernel, for pointers of `types` that are divisible by 16."""
    signature = {name: types.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
    attrs = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in types}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, attrs)
    return _report(triton.compile(source, target=GPUTarget("cuda", capability, 32), options={}))


def _type(name: str, dtype: str) -> str:
    if name in _INTS or name.startswith("stride"):
        return "i32"
    if name == "offsets_ptr":
        return "*i64"
    if name == "counter_ptr":
        return "*i32"
    return f"*{dtype}" if name in ("x_ptr", "evecs_ptr", "y_ptr") else "*fp32"


def _report(compiled: Any) -> Report:
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


@dataclass(frozen=True)
class Binary:
    """One shipped tile for one card, forward or backward."""

    precision: str
    tile: Tile
    capability: int
    backward: bool

    def compile(self) -> Report:
        """Its report."""
        pointers = BACKWARD if self.backward else FORWARD
        return compile_kernel(self.tile, CLASSES[self.precision], capability=self.capability, pointers=pointers)

    def faults(self, report: Report) -> list[str]:
        """What must not be: too much shared memory, spills, operands that ptxas before 13.3 may overwrite."""
        found = []
        if report.shared > CARDS[self.capability]:
            found.append(f"{report.shared} bytes of shared memory, the card has {CARDS[self.capability]}")
        if report.n_spills:
            found.append(f"{report.n_spills} spills")
        if report.sass_forms["wgmma_register"]:
            found.append(f"{report.sass_forms['wgmma_register']} register operands of wgmma")
        if self.capability == 90 and self.tile.operands != "registers" and not report.sass_forms["wgmma"]:
            found.append("no wgmma")
        return found


def shipped(capability: int) -> Iterator[Binary]:
    """Every binary of the tile table for one card."""
    for precision in CLASSES:
        for tile in dict.fromkeys(tile for _, tile in tiles.table(precision, has_wgmma(capability))):
            for backward in (False, True):
                yield Binary(precision, tile, capability, backward)


def has_wgmma(capability: int) -> bool:
    """Whether the card takes the table for wgmma."""
    return capability == 90


def fingerprint() -> str:
    """A hash of the tile table and of the kernel as the compiler sees it: comments and docstrings do not count."""
    files = [
        ast.parse(Path(file.__file__).read_text()) for file in (diffuse_kernel_triton, products_triton, slots_triton)
    ]
    for node in (node for file in files for node in ast.walk(file)):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    kernel = "\n".join(map(ast.unparse, files))  # a dump differs between versions of Python
    tables = [tiles.table(precision, wgmma) for precision in CLASSES for wgmma in (True, False)]
    return hashlib.sha256(f"{kernel} {tables}".encode()).hexdigest()[:16]


def _line(binary: Binary) -> dict[str, Any]:
    report = binary.compile()
    return {
        "triton": triton.__version__, "card": f"sm_{binary.capability}", "precision": binary.precision,
        "tile": list(vars(binary.tile).values()), "pass": "backward" if binary.backward else "forward",
        "registers": report.n_regs, "spills": report.n_spills, "shared_bytes": report.shared, **report.sass_forms,
        "faults": binary.faults(report), "fingerprint": fingerprint(),
    }  # fmt: skip


def main(out: str) -> None:
    """Compile everything, one JSON line a binary; exit status 1 where one has a fault."""
    todo, wrong = [binary for capability in CARDS for binary in shipped(capability)], 0
    with get_context("spawn").Pool() as pool, Path(out).open("w") as file:
        for n, line in enumerate(pool.imap(_line, todo), 1):
            print(json.dumps(line), file=file, flush=True)
            print(f"{n}/{len(todo)}", line["card"], line["precision"], line["tile"], line["pass"], *line["faults"])
            wrong += bool(line["faults"])
    sys.exit(f"{wrong} of {len(todo)} binaries have faults" if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1])
