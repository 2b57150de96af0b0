"""Bytes become a whole file or none: what a reader sees is never half written, even after a kill or a full disk.

It is separate because stored operators, checkpoints, results and predictions all need it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from flashheat.errors import FlashheatError

TEMPORARY_SUFFIX = ".tmp"  # of a file that is not whole yet


def write_atomically(path: Path, *content: bytes | memoryview | str) -> None:
    """Write the contents, one after another, beside `path`, flush to the disk, rename over `path`.

    Raises:
        FlashheatError: the folder cannot be written or the disk is full; what was at `path` before is still there.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in content:
                    file.write(part.encode() if isinstance(part, str) else part)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise FlashheatError(
            f"cannot write {path}: {error.strerror or error}; free the disk or choose a folder that can be written"
        ) from error


def make_folder(path: Path) -> Path:
    """Make `path` and its parents where they are absent.

    Raises:
        FlashheatError: it cannot be made, or is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlashheatError(f"cannot make the folder {path}: {error.strerror or error}; choose another") from error
    return path


def check_writable(folder: Path) -> None:
    """Say before any work is done that a folder cannot be written.

    Raises:
        FlashheatError: it cannot be written.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FlashheatError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error


def _umask() -> int:
    """The process's umask: a temporary file is private, the final one must be as readable as any other."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
