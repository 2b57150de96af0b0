"""How long the lowest eigenpairs of a mesh take, beside `scipy.sparse.linalg.eigsh`: `flashheat bench operators`.

Each call runs in a process of its own, because BLAS reads its number of threads when it is loaded. Both sides are given
L and the areas, the same tolerance in the same units, and their results are judged here, by code of neither.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from flashheat.bench.about import about_cpu, about_gpu
from flashheat.bench.figures import keep_row
from flashheat.bench.timing import require_cuda
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, icosphere
from flashheat.mesh.primitives import split
from flashheat.operators.csr import CSR
from flashheat.operators.geometry import usable_geometry
from flashheat.operators.laplacian import laplacian_and_mass
from flashheat.operators.segments import connected
from flashheat.operators.spectrum import Spectrum, lowest_eigenpairs

if TYPE_CHECKING:
    import scipy.sparse

TOLERANCE = 1e-5  # of the residual below, for both sides
ARPACK_TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 0.0)  # the first that reaches it counts
SHIFT = 1e-8  # of L and of the solver, as DiffusionNet's own code has it
MERIDIANS_A_PARALLEL = 16

IMPLS = ("flashheat", "cuda", "eigsh")

CALLS, ENOUGH = 4, 5.0  # of each side at most, and seconds after which there is no other

Row = dict[str, Any]
Result = TypeVar("Result")


class System(NamedTuple):
    """What is to be solved, of a mesh in unit size."""

    L: CSR
    mass: Tensor
    points: Tensor
    labels: Tensor


def run(
    out: Path,
    commit: str,
    vertices: Sequence[int],
    files: Sequence[Path],
    k_eig: int,
    impls: Sequence[str],
    threads: Sequence[int] = (),
) -> None:
    """Measure every mesh near every size by each implementation, row by row into a file of JSON lines.

    Args:
        out: the file; rows that are measured replace their older ones, all others stay.
        commit: written into every row.
        vertices: the sizes.
        files: meshes, refined until they are as near to a size as they come; beside them a sphere and one of slivers.
        k_eig: how many eigenpairs.
        impls: of "flashheat" (on the CPU), "cuda" (flashheat on a CUDA device) and "eigsh".
        threads: of BLAS on the CPU; none: 1, 2, 4 and all.

    Raises:
        FlashheatError: an implementation is unknown, a mesh cannot be read, or a result of flashheat misses the
            tolerance (its row is left out). A row of eigsh says what it reached at best.
    """
    for impl in impls:
        if impl not in IMPLS:
            raise FlashheatError(f"an implementation must be one of {', '.join(IMPLS)}; it is {impl!r}")
    if "cuda" in impls:
        require_cuda("implementation cuda")
    bodies = {path.stem: Mesh.read(path) for path in files}
    wrong = []
    for mesh_name, mesh in meshes(vertices, bodies):
        system = _assembled(mesh)
        for impl in impls:
            for n_threads in (threads or _threads()) if impl != "cuda" else _threads()[-1:]:
                with _threads_of_a_child(n_threads), ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    found = pool.submit(measure, impl, system, k_eig).result()
                case = {"bench": "operators", "mesh": mesh_name, "V": mesh.n_verts, "K": k_eig, "impl": impl}
                case |= {"threads": n_threads}
                if impl != "eigsh" and not found["residual"] <= TOLERANCE:
                    wrong.append(f"{mesh_name}, {mesh.n_verts} vertices: {found['residual']:.1e}")
                else:
                    keep_row(out, case, found | (about_gpu(commit) if impl == "cuda" else about_cpu(commit)))
    if wrong:
        raise FlashheatError(f"flashheat's residuals must be at most {TOLERANCE:.0e}: {'; '.join(wrong)}")


def measure(impl: str, system: System, k_eig: int) -> Row:
    """Seconds, largest residual, peak memory of the process, and what solved it."""
    if impl == "eigsh":
        seconds, residual, solver = _theirs(system.L.to_scipy(), system.mass.numpy(), k_eig)
    else:
        seconds, residual, solver = _ours(system, k_eig, "cuda" if impl == "cuda" else "cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": round(seconds, 3), "residual": residual, "peak_bytes": peak, "solver": solver}


def _ours(system: System, k_eig: int, device: str) -> tuple[float, float, str]:
    seconds, found = _least(lambda: _found(system, k_eig, device))
    evals, evecs = found.evals[0].cpu().numpy(), found.evecs.cpu().numpy()
    return seconds, _residual(system.L.to_scipy(), system.mass.numpy(), evals, evecs), found.solver[0]


def _least(run: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of the quickest of several calls, as the first loads libraries and the machine may be busy; a result."""
    seconds: list[float] = []
    while len(seconds) < CALLS and sum(seconds) < ENOUGH:
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def _found(system: System, k_eig: int, device: str) -> Spectrum:
    """From arrays on the CPU, as eigsh takes them, to eigenpairs on the device."""
    L = system.L.map(lambda of: of.to(device))
    mass, points, labels = (of.to(device) for of in (system.mass, system.points, system.labels))
    found = lowest_eigenpairs(L, mass, points, labels, torch.zeros_like(labels), k_eig, "native")
    if device == "cuda":
        torch.cuda.synchronize()
    return found


def _theirs(L: scipy.sparse.csr_array, mass: np.ndarray, k_eig: int) -> tuple[float, float, str]:
    """By the loosest tolerance that suffices; where none does, by that of the smallest residual."""
    tried: list[tuple[float, float, str]] = []
    for tolerance in ARPACK_TOLERANCES:
        start = time.perf_counter()
        found = _eigsh(L, mass, k_eig, tolerance)
        tried.append((time.perf_counter() - start, _residual(L, mass, *found), f"{tolerance:.0e}"))
        at_its_limit = len(tried) > 2 and tried[-1][1] > 0.9 * tried[-3][1]  # it is not the tolerance that limits
        if tried[-1][1] <= TOLERANCE or at_its_limit:
            break
    best = min(tried, key=lambda of: (of[1] > TOLERANCE, round(np.log10(of[1]), 1), of[0]))
    seconds = best[0] if best[0] > ENOUGH else min(best[0], _least(lambda: _eigsh(L, mass, k_eig, float(best[2])))[0])
    return seconds, best[1], f"tol {best[2]}"


def _eigsh(L: scipy.sparse.csr_array, mass: np.ndarray, k_eig: int, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    import scipy.sparse
    from scipy.sparse.linalg import eigsh

    A = (L + SHIFT * scipy.sparse.eye_array(len(mass))).tocsc()
    M = scipy.sparse.diags_array(mass).tocsc()
    evals, evecs = eigsh(A, k=k_eig, M=M, sigma=SHIFT, tol=tolerance, v0=np.random.default_rng(0).random(len(mass)))
    return evals, evecs


def _residual(L: scipy.sparse.csr_array, mass: np.ndarray, evals: np.ndarray, evecs: np.ndarray) -> float:
    """`max_k |L phi - lambda M phi|_{M^-1} / (|phi|_M max(lambda_k, 4 pi / area))`, over vertices with area."""
    on = mass > 0
    size = np.sqrt((mass[:, None] * evecs**2).sum(0))
    off = (L @ evecs - mass[:, None] * evecs * evals)[on] / np.sqrt(mass[on])[:, None]
    return float((np.linalg.norm(off, axis=0) / size / np.maximum(evals, 4 * np.pi / mass.sum())).max())


def _assembled(mesh: Mesh) -> System:
    faces = torch.from_numpy(mesh.faces)
    geometry = usable_geometry(torch.from_numpy(mesh.verts), faces, [mesh.n_verts], "native")
    L, mass = laplacian_and_mass(geometry, "native")
    return System(L, mass, geometry.verts, connected(L.rows(), L.indices, mesh.n_verts))


def meshes(vertices: Sequence[int], bodies: dict[str, Mesh]) -> Iterator[tuple[str, Mesh]]:
    """At about each size a sphere, one of slivers, and the bodies, refined."""
    for V in vertices:
        yield "icosphere", icosphere(max(1, round(np.log(V / 10) / np.log(4))))
        yield "slivers", sphere_of_slivers(V)
        for name, mesh in bodies.items():
            yield name, _refined(mesh, V)


def sphere_of_slivers(V: int) -> Mesh:
    """Parallels and many more meridians: near the poles triangles are hundreds of times longer than wide."""
    n_parallels = max(2, round(np.sqrt(V / MERIDIANS_A_PARALLEL)))
    n = MERIDIANS_A_PARALLEL * n_parallels
    polar, azimuth = np.pi * np.arange(1, n_parallels + 1) / (n_parallels + 1), 2 * np.pi * np.arange(n) / n
    ring = np.stack([np.cos(azimuth), np.sin(azimuth), np.zeros(n)], 1)
    body = np.sin(polar)[:, None, None] * ring + np.cos(polar)[:, None, None] * np.array([0, 0, 1.0])
    verts = np.concatenate([body.reshape(-1, 3), [[0, 0, 1.0], [0, 0, -1.0]]])
    a = np.arange(n_parallels * n).reshape(n_parallels, n)
    b = np.roll(a, -1, axis=1)
    north, south = np.full(n, a.size), np.full(n, a.size + 1)
    corners = [
        (a[:-1], a[1:], b[1:]), (a[:-1], b[1:], b[:-1]), (north, a[0], b[0]), (south, b[-1], a[-1]),
    ]  # fmt: skip
    return Mesh(verts, np.concatenate([np.stack(of, -1).reshape(-1, 3) for of in corners]))


def _refined(mesh: Mesh, V: int) -> Mesh:
    """Each triangle cut into four, until the number of vertices is nearest to V."""
    while mesh.n_verts < V / 2:
        mesh = Mesh(*split(mesh.verts, mesh.faces))
    return mesh


def _threads() -> list[int]:
    n = os.cpu_count() or 1
    return sorted({t for t in (1, 2, 4, n) if t <= n})


@contextmanager
def _threads_of_a_child(n: int) -> Iterator[None]:
    """A process that starts meanwhile has `n` threads for BLAS."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(n)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
