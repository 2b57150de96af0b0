"""Mesh files become entries of the operator store, ahead of training.

It is separate because it needs no data set: a mesh that fails is reported at the end and stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from flashheat.devices import check_device
from flashheat.errors import FlashheatError, check_count
from flashheat.mesh import Mesh
from flashheat.operators import OperatorStore
from flashheat.train.prepare import open_store
from flashheat.train.progress import Progress, make_progress
from flashheat.workers import each

logger = logging.getLogger("flashheat")

SUFFIXES = (".obj", ".off", ".ply", ".stl")
MESHES_AT_ONCE, VERTICES_AT_ONCE = 256, 500_000  # on a device: what is in memory


def precompute(
    paths: Sequence[str | Path],
    k_eig: int = 128,
    store: str = "",
    workers: int = 1,
    progress: Progress | None = None,
    device: str = "cpu",
) -> dict[str, str]:
    """Compute the operators of each mesh, normalised as in training, unless the store has them.

    Args:
        paths: mesh files, and folders of them (searched through).
        k_eig: eigenpairs of each.
        store: folder; "": in the user's cache folder.
        workers: processes that work at once, each with a mesh and its operators in memory; on a GPU, threads that read.
        progress: None: a bar on a terminal, else log lines.
        device: "cpu", or a CUDA device, which works on many meshes at once.

    Returns:
        {file: why it failed}; empty when all went well.

    Raises:
        FlashheatError: there is no mesh file or no such device, the store cannot be written, `workers` or `k_eig` is
            below 1.
    """
    files = list(dict.fromkeys(file for path in paths for file in mesh_files(Path(path))))  # each once
    if workers < 1:
        raise FlashheatError(f"the number of workers must be at least 1; it is {workers}")
    check_count("k_eig", k_eig)
    check_device(device)
    opened = open_store(store)  # a folder that cannot be made is told before any work
    failures = {}
    if device == "cpu":
        done = each(files, partial(_fill, k_eig=k_eig, store=store), min(workers, len(files)))
    else:
        done = _each_on_device(files, k_eig, opened, workers, device)
    with (progress or make_progress()).stage("operators", len(files), unit="meshes") as advance:
        for file, why in done:
            if why is not None:
                failures[str(file)] = why
            advance(f"{file.name} failed" if str(file) in failures else file.name)
    n_made = len(files) - len(failures)
    logger.info("operators: %d of %d meshes succeeded, %d failed", n_made, len(files), len(failures))
    return failures


def _fill(file: Path, k_eig: int, store: str) -> str | None:
    """Why the file's operators could not be computed; None when the store has them."""
    try:
        open_store(store).get(_read(file), k_eig=k_eig)
    except Exception as error:
        return _why(error)
    return None


def _why(error: Exception) -> str:
    """One line: whatever a mesh brings about is its own failure, and the others go on."""
    if isinstance(error, FlashheatError):
        return str(error)
    what = next(iter(str(error).splitlines()), "")
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return f"its operators must fit into memory: {what or 'there is not enough'}; try fewer workers or eigenpairs"
    logger.debug("an unforeseen error", exc_info=error)
    return f"an error of flashheat's own, worth a report: {type(error).__name__}: {what}"


def _read(file: Path) -> Mesh:
    return Mesh.read(file).normalise()[0]


def _each_on_device(
    files: Sequence[Path], k_eig: int, store: OperatorStore, workers: int, device: str
) -> Iterator[tuple[Path, str | None]]:
    """`(file, why it failed)`: groups of meshes at once; the meshes of a group in which one fails, one by one."""
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(files), MESHES_AT_ONCE):
            read = [(file, pool.submit(_read, file)) for file in files[first : first + MESHES_AT_ONCE]]
            meshes = {}
            for file, of_file in read:
                try:
                    meshes[file] = of_file.result()
                except Exception as error:
                    yield file, _why(error)
            for group in _groups(meshes):
                yield from _filled(group, k_eig, store, device)


def _groups(meshes: dict[Path, Mesh]) -> Iterator[dict[Path, Mesh]]:
    """In their order, up to so many vertices in each."""
    group: dict[Path, Mesh] = {}
    for file, mesh in meshes.items():
        if group and sum(of.n_verts for of in group.values()) + mesh.n_verts > VERTICES_AT_ONCE:
            yield group
            group = {}
        group[file] = mesh
    if group:
        yield group


def _filled(
    group: dict[Path, Mesh], k_eig: int, store: OperatorStore, device: str
) -> Iterator[tuple[Path, str | None]]:
    why = None
    try:
        store.get_many(list(group.values()), k_eig, device=device)
    except Exception as error:
        why = _why(error)
    if why is None or len(group) == 1:
        yield from ((file, why) for file in group)
    else:  # only now is the memory free that the error held
        for file, mesh in group.items():
            yield from _filled({file: mesh}, k_eig, store, device)


def mesh_files(path: Path) -> list[Path]:
    """The file itself, or the mesh files of a folder and all below it, in order.

    Raises:
        FlashheatError: it is not there, or a folder without mesh files.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and not file.is_dir())
    if not files:
        raise FlashheatError(f"a folder to precompute must hold {', '.join(SUFFIXES)} files; {path} holds none")
    return files
