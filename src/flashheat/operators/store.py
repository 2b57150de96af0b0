"""A folder that keeps the operators of every mesh it was asked for, so that each is computed once.

It is separate because what can go wrong on a disk (two writers, a kill, a damaged file) is handled here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.files import TEMPORARY_SUFFIX
from flashheat.operators.compute import HasGeometry, compute_operators, compute_operators_of_many
from flashheat.operators.container import Operators, check_dtype
from flashheat.operators.serial import FORMAT_VERSION

logger = logging.getLogger("flashheat")

ALGORITHM_VERSION = 4  # raise it whenever compute_operators gives other numbers for the same input (see CONTRIBUTING)
STALE_AFTER_SECONDS = 3600.0
HASHED_AT_ONCE, HASHERS = 2**20, 8  # bytes; threads


class OperatorStore:
    """Operators on disk, keyed on the mesh's bytes, every option and the algorithm's version.

    Entries are written atomically, so any number of processes may share the folder. A damaged entry is renamed to
    `*.damaged` and computed again, with a warning.

    The key does not hold the number of BLAS threads (OMP_NUM_THREADS at the start of Python) or the machine, which
    change the eigenvectors by rounding; an entry keeps those of whoever came first. Training makes much of rounding:
    to repeat a figure, digit by digit, start from an empty store with the same number of threads.

    Args:
        folder: made when it is absent.

    Raises:
        FlashheatError: when the folder cannot be made. (One that cannot be written serves what it holds.)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlashheatError(f"the store must be a folder that can be made: {self.folder}: {error}") from error
        self._remove_stale_files()

    def get(
        self,
        mesh: HasGeometry,
        k_eig: int = 128,
        convention: str = "native",
        frames: np.ndarray | Tensor | None = None,
        normals: np.ndarray | Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        basis: torch.dtype | None = None,
    ) -> Operators:
        """What compute_operators gives for the same arguments: read when it is here, computed and kept when not.

        Args:
            mesh: as compute_operators takes it, and so are all others but one.
            k_eig: K.
            convention: "native" or "diffusion_net".
            frames: [V, 3, 3].
            normals: [V, 3].
            device: where it is computed, and comes to.
            dtype: of the result.
            basis: dtype of evecs and its gradients, which then are kept too (see Operators.with_basis); None: `dtype`.

        Raises:
            FlashheatError: as compute_operators does, and when the entry cannot be written.
        """
        check_dtype("basis", basis or dtype)
        check_device(device or "cpu")
        path = self.path(mesh, k_eig, convention, frames, normals, dtype, basis)
        operators = self._read(path, device)
        if operators is None:
            operators = compute_operators(mesh, k_eig, convention, frames, normals, device, dtype)
            operators = operators if basis is None else operators.with_basis(basis)
            operators.save(path)
        return operators

    def get_many(
        self,
        meshes: Sequence[HasGeometry],
        k_eig: int = 128,
        convention: str = "native",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> list[Operators]:
        """What compute_operators_of_many gives: what is here is read, all the others are computed at once and kept.

        Raises:
            FlashheatError: as compute_operators_of_many does, and when an entry cannot be written.
        """
        check_device(device or "cpu")
        paths = [self.path(mesh, k_eig, convention, dtype=dtype) for mesh in meshes]
        found = {path: self._read(path, device) for path in paths}
        absent = {path: mesh for path, mesh in zip(paths, meshes, strict=True) if found[path] is None}
        computed = compute_operators_of_many(list(absent.values()), k_eig, convention, device, dtype)
        for path, operators in zip(absent, computed, strict=True):
            operators.save(path)
            found[path] = operators
        return [of for path in paths if (of := found[path]) is not None]

    def path(
        self,
        mesh: HasGeometry,
        k_eig: int = 128,
        convention: str = "native",
        frames: np.ndarray | Tensor | None = None,
        normals: np.ndarray | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        basis: torch.dtype | None = None,
    ) -> Path:
        """The file that holds, or would hold, the operators for these arguments."""
        digest = hashlib.blake2b(
            f"{FORMAT_VERSION} {ALGORITHM_VERSION} {k_eig} {convention} {dtype} {basis or dtype}".encode(),
            digest_size=20,
        )
        for array in (mesh.verts, mesh.faces, frames, normals):
            _digest_array(digest, array)
        return self.folder / f"{digest.hexdigest()}.safetensors"

    def _read(self, path: Path, device: torch.device | str | None) -> Operators | None:
        if not path.exists():
            return None
        try:
            return Operators.load(path, device)
        except FlashheatError as error:
            aside = path.with_suffix(".damaged")
            logger.warning("%s; set aside as %s and computed again", error, aside.name)
            try:
                os.replace(path, aside)
            except FileNotFoundError:  # another process may have set it aside first
                pass
            except OSError as problem:
                raise FlashheatError(
                    f"an entry of the store must be a whole file; {path} is not, and cannot be set aside as "
                    f"{aside.name}: {problem.strerror}; remove both"
                ) from problem
            return None

    def _remove_stale_files(self) -> None:
        """Temporary files of writers that were killed, once they are too old to belong to a living one."""
        for temporary in self.folder.glob(f"*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - temporary.stat().st_mtime > STALE_AFTER_SECONDS:
                    temporary.unlink()


def _digest_array(digest: hashlib.blake2b, array: np.ndarray | Tensor | None) -> None:
    if array is None:
        digest.update(b"none;")
        return
    array = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, Tensor) else array)
    digest.update(f"{array.dtype.str} {array.shape};".encode())
    content = array.reshape(-1).view(np.uint8).data
    parts = [content[start : start + HASHED_AT_ONCE] for start in range(0, len(content), HASHED_AT_ONCE)]
    if len(parts) == 1:
        digest.update(_hashed(parts[0]))
        return
    with ThreadPoolExecutor(HASHERS) as pool:  # of a large mesh the key would take as long as the entry
        for of_part in pool.map(_hashed, parts):
            digest.update(of_part)


def _hashed(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()  # processors have instructions for it: twice as fast as blake2b
