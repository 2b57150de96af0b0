"""Mesh files become entries of the operator store, ahead of training.

It is separate because it needs no data set: a mesh that fails is reported at the end and stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh
from flashheat.train.prepare import open_store
from flashheat.train.progress import Progress, make_progress

logger = logging.getLogger("flashheat")

SUFFIXES = (".obj", ".off", ".ply", ".stl")


def precompute(
    paths: Sequence[str | Path], k_eig: int = 128, store: str = "", progress: Progress | None = None
) -> dict[str, str]:
    """Compute the operators of each mesh, normalised as in training, unless the store has them.

    Args:
        paths: mesh files, and folders of them (searched through).
        k_eig: eigenpairs of each.
        store: folder; "": in the user's cache folder.
        progress: None: a bar on a terminal, else log lines.

    Returns:
        {file: why it failed}; empty when all went well.

    Raises:
        FlashheatError: there is no mesh file, or the store cannot be written.
    """
    files = list(dict.fromkeys(file for path in paths for file in mesh_files(Path(path))))  # each once
    operators = open_store(store)
    failures = {}
    with (progress or make_progress()).stage("operators", len(files), unit="meshes") as advance:
        for file in files:
            try:
                operators.get(Mesh.read(file).normalise()[0], k_eig=k_eig)
            except FlashheatError as error:
                failures[str(file)] = str(error)
            advance(f"{file.name} failed" if str(file) in failures else file.name)
    n_made = len(files) - len(failures)
    logger.info("operators: %d of %d meshes succeeded, %d failed", n_made, len(files), len(failures))
    return failures


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
