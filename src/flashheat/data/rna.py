"""RNA surfaces with a segment label at each vertex: the folders `npz_train` and `npz_test` become a split.

It is separate because its files and its labels (-1 to 258) are its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashheat.data.arrays import open_npz
from flashheat.data.example import Example, Split, checked_labels, checked_rows
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh

N_CLASSES = 260
WHERE = "get the data from github.com/nmwsharp/RNA-Surface-Segmentation-Dataset"


def load_rna(root: str | Path | None) -> Split:
    """The RNA meshes as they come, isolated vertices included; the class is the file's label + 1.

    Args:
        root: folder with `npz_train` and `npz_test`, each holding `*.npz` with `vertices`, `faces`, `labels`.

    Raises:
        FlashheatError: a folder is absent or empty, or a file is not as described.

    Source: Poulenard et al., "Effective rotation-invariant point CNN with spherical harmonics kernels", 2019.
    """
    train, test = (_read_folder(root, part) for part in ("npz_train", "npz_test"))
    return Split(train, test, N_CLASSES, notes=("Classes are the files' labels + 1.",))


def _read_folder(root: str | Path | None, part: str) -> list[Example]:
    if root is None or not (folder := Path(root) / part).is_dir():
        raise FlashheatError(f"rna needs a data root with the folders npz_train and npz_test; got {root}; {WHERE}")
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise FlashheatError(f"{folder} must hold *.npz files; it holds none; {WHERE}")
    return [_read_surface(path) for path in paths]


def _read_surface(path: Path) -> Example:
    verts, faces, labels = open_npz(path, "vertices", "faces", "labels")
    mesh = Mesh(verts, faces, name=path.stem)
    labels = checked_rows(labels, f"`labels` of {path}").astype(np.int64)
    classes = checked_labels(labels + 1, f"`labels` + 1 of {path}")
    if len(classes) != mesh.n_verts:
        raise FlashheatError(f"{path} must have one label a vertex; got {len(classes)} for {mesh.n_verts} vertices")
    if classes.max() >= N_CLASSES:
        raise FlashheatError(f"labels of {path} must be at most {N_CLASSES - 2}; got {classes.max() - 1}")
    return Example(mesh, classes)
