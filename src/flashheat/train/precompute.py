"""Mesh files become entries of the operator store, ahead of training.

It is separate because it needs no data set: a mesh that fails is reported at the end and stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh
from flashheat.train.prepare import open_store
from flashheat.train.progress import Progress, make_progress
from flashheat.workers import each

logger = logging.getLogger("flashheat")

SUFFIXES = (".obj", ".off", ".ply", ".stl")


def precompute(
    paths: Sequence[str | Path], k_eig: int = 128, store: str = "", workers: int = 1, progress: Progress | None = None
) -> dict[str, str]:
    """Compute the operators of each mesh, normalised as in training, unless the store has them.

    Args:
        paths: mesh files, and folders of them (searched through).
        k_eig: eigenpairs of each.
        store: folder; "": in the user's cache folder.
        workers: processes that work at once; each holds a mesh and its operators in memory.
        progress: None: a bar on a terminal, else log lines.

    Returns:
        {file: why it failed}; empty when all went well.

    Raises:
        FlashheatError: there is no mesh file, the store cannot be written, or `workers` is below 1.
    """
    files = list(dict.fromkeys(file for path in paths for file in mesh_files(Path(path))))  # each once
    if workers < 1:
        raise FlashheatError(f"the number of workers must be at least 1; it is {workers}")
    open_store(store)  # a folder that cannot be made is told before any work
    failures = {}
    work = partial(_fill, k_eig=k_eig, store=store)
    with (progress or make_progress()).stage("operators", len(files), unit="meshes") as advance:
        for file, why in each(files, work, min(workers, len(files))):
            if why is not None:
                failures[str(file)] = why
            advance(f"{file.name} failed" if str(file) in failures else file.name)
    n_made = len(files) - len(failures)
    logger.info("operators: %d of %d meshes succeeded, %d failed", n_made, len(files), len(failures))
    return failures


def _fill(file: Path, k_eig: int, store: str) -> str | None:
    """Why the file's operators could not be computed; None when the store has them."""
    try:
        open_store(store).get(Mesh.read(file).normalise()[0], k_eig=k_eig)
    except FlashheatError as error:
        return str(error)
    return None


def mesh_files(path: Path) -> list[Path]:
    """The file itself, or the mesh files of a folder and all below it, in order.

    Raises:
        FlashheatError: it is not there, or a folder without mesh files.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise FlashheatError(f"a folder to precompute must hold {', '.join(SUFFIXES)} files; {path} holds none")
    return files
