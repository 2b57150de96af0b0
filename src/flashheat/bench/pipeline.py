"""How long the rest of the operators takes: Laplacian and gradients, many small meshes at once, an entry of the store.

It is separate from the eigenpairs of one mesh because there is no peer to be measured beside, but for plain reading.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashheat.bench.about import about_cpu, about_gpu
from flashheat.bench.eigenpairs import TOLERANCE, meshes
from flashheat.bench.figures import keep_row
from flashheat.bench.timing import require_cuda
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, torus
from flashheat.operators import Operators, OperatorStore, compute_operators, compute_operators_of_many
from flashheat.operators.frames import tangent_frames
from flashheat.operators.geometry import usable_geometry
from flashheat.operators.gradient import gradients
from flashheat.operators.laplacian import laplacian_and_mass

VERTICES = 100_000  # of one mesh, about
MESHES, MESHES_AT_ONCE = 1000, 250
REPEATS = 5


def run(out: Path, commit: str, parts: Sequence[str], k_eig: int, impls: Sequence[str]) -> None:
    """Measure the parts, row by row into a file of JSON lines.

    Args:
        out: the file; rows that are measured replace their older ones, all others stay.
        commit: written into every row.
        parts: of "geometry", "many" and "store".
        k_eig: how many eigenpairs.
        impls: "flashheat" (on the CPU), "cuda"; any other has no such part.

    Raises:
        FlashheatError: a part is unknown, there is no CUDA device, or a result misses the tolerance.
    """
    for part in parts:
        if part not in PARTS:
            raise FlashheatError(f"a part must be one of eigenpairs, {', '.join(PARTS)}; it is {part!r}")
    for device in [{"flashheat": "cpu", "cuda": "cuda"}[impl] for impl in impls if impl != "eigsh"]:
        if device == "cuda":
            require_cuda("implementation cuda")
        for part in parts:
            PARTS[part](out, commit, k_eig, device)


def geometry(out: Path, commit: str, _: int, device: str) -> None:
    """Laplacian, areas, normals, frames and gradients of a sphere and of slivers, from arrays on the device."""
    for name, mesh in meshes([VERTICES], {}):
        verts, faces = (torch.from_numpy(of).to(device) for of in (mesh.verts, mesh.faces))

        def once(verts: torch.Tensor = verts, faces: torch.Tensor = faces) -> None:
            usable = usable_geometry(verts, faces, [len(verts)], "native")
            laplacian_and_mass(usable, "native")
            gradients(usable, tangent_frames(usable.normals), "native")

        case = {"bench": "geometry", "mesh": name, "V": mesh.n_verts, "impl": device}
        keep_row(out, case, {"seconds": _least(once, device)} | _about(device, commit))


def many(out: Path, commit: str, k_eig: int, device: str) -> None:
    """All operators of different bodies of 1,000 vertices, from meshes to operators on the device.

    Raises:
        FlashheatError: a residual is above the tolerance.
    """
    base, rng = torus(40, 25), np.random.default_rng(0)
    bodies = []
    for _ in range(MESHES):
        dents = 0.1 * np.sin(base.verts[:, [1, 2, 0]] * (1 + 3 * rng.random(3)))
        bodies.append(Mesh(base.verts * (1 + rng.random(3)) + dents, base.faces))
    compute_operators_of_many(bodies[:10], k_eig, device=device)  # libraries are loaded
    start, found = time.perf_counter(), []
    for first in range(0, MESHES, MESHES_AT_ONCE):
        found += compute_operators_of_many(bodies[first : first + MESHES_AT_ONCE], k_eig, device=device)
    worst = max(float(of.residuals.max()) for of in found)
    seconds = time.perf_counter() - start
    if not worst <= TOLERANCE:
        raise FlashheatError(f"flashheat's residuals must be at most {TOLERANCE:.0e}: got {worst:.1e}")
    case = {"bench": "many", "V": base.n_verts, "meshes": MESHES, "K": k_eig, "impl": device}
    keep_row(out, case, {"seconds": round(seconds, 3), "residual": worst} | _about(device, commit))


def store(out: Path, commit: str, k_eig: int, device: str) -> None:
    """An entry onto the device, checked, beside the plain reading of its file: with the file in memory, and without.

    On a GPU plain reading goes into a page-locked buffer that is there already, and on by one copy.
    """
    (_, mesh), *_ = meshes([VERTICES], {})
    with tempfile.TemporaryDirectory(dir=out.resolve().parent) as folder:
        kept = OperatorStore(folder)
        compute_operators(mesh, k_eig, device=device).save(kept.path(mesh, k_eig))
        path = kept.path(mesh, k_eig)
        n_bytes = path.stat().st_size
        buffer = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=device != "cpu")

        def plain() -> None:
            with path.open("rb", buffering=0) as file:
                file.readinto(buffer.numpy().data)
            buffer.to(device, non_blocking=True)

        ways = {
            "plain": plain,
            "load": lambda: Operators.load(path, device),
            "get": lambda: kept.get(mesh, k_eig, device=device),
        }
        for cache in ("warm", "cold"):
            for name, way in ways.items():
                seconds = _least(way, device, before=(lambda: None) if cache == "warm" else lambda: _forget(path))
                case = {"bench": "store", "V": mesh.n_verts, "K": k_eig, "cache": cache, "impl": f"{device}, {name}"}
                keep_row(out, case, {"seconds": seconds, "bytes": n_bytes} | _about(device, commit))


def _forget(path: Path) -> None:
    """Ask the system to drop the file from memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _least(run: Callable[[], Any], device: str, before: Callable[[], None] = lambda: None) -> float:
    """Seconds of the quickest of several calls after a first."""
    seconds = []
    for _ in range(1 + REPEATS):
        before()
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(f"{min(seconds[1:]):.4g}")


def _about(device: str, commit: str) -> dict[str, Any]:
    return about_cpu(commit) if device == "cpu" else about_gpu(commit)


PARTS = {"geometry": geometry, "many": many, "store": store}
