"""Operators become one safetensors file, and back, with a version and a checksum that a reader holds the file to.

It is separate from the store so that a user can also save the operators of one mesh, or a pack, by hand.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.operators.container import Operators
from flashheat.operators.csr import CSR

FORMAT_VERSION = "1"
TENSORS = ("mass", "evals", "evecs", "frames", "faces", "edges", "k_valid", "n_components", "residuals")


def save(operators: Operators, path: Path) -> None:
    """Write atomically: a reader sees the whole new file or what was there before, even after a kill or a power cut."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(operators).items()}
    metadata = {
        "format": FORMAT_VERSION,
        "convention": operators.convention,
        "solver": json.dumps(operators.solver),
    }
    write_atomically(path, to_bytes(tensors, metadata | {"checksum": checksum(tensors, metadata)}))


def load(path: Path) -> Operators:
    """Read and check what `save` wrote.

    Raises:
        FlashheatError: when the file is absent, damaged, or of another version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise FlashheatError(f"operators must be a readable safetensors file: {path}: {error}") from error
    if metadata.get("format") != FORMAT_VERSION:
        raise FlashheatError(
            f"operators must be of format {FORMAT_VERSION}: {path} says {metadata.get('format')}; compute them again"
        )
    if metadata.pop("checksum", None) != checksum(tensors, metadata):
        raise FlashheatError(f"the checksum of {path} does not fit its content: it is damaged; compute it again")
    return _from_tensors(tensors, metadata)


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """A digest of the metadata and of every tensor's name, dtype, shape and bytes."""
    digest = hashlib.blake2b(repr(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(operators: Operators) -> dict[str, Tensor]:
    tensors = {name: getattr(operators, name) for name in TENSORS}
    for name, matrix in (("L", operators.L), ("grad", operators.gradX)):
        tensors |= {f"{name}.indptr": matrix.indptr, f"{name}.indices": matrix.indices}
    tensors |= {f"{name}.values": getattr(operators, name).values for name in ("L", "gradX", "gradY")}
    return tensors if operators.offsets is None else tensors | {"offsets": operators.offsets}


def _from_tensors(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Operators:
    V = tensors["mass"].shape[0]

    def matrix(pattern: str, values: str) -> CSR:
        return CSR(tensors[f"{pattern}.indptr"], tensors[f"{pattern}.indices"], tensors[f"{values}.values"], (V, V))

    return Operators(
        **{name: tensors[name] for name in TENSORS},
        L=matrix("L", "L"),
        gradX=matrix("grad", "gradX"),
        gradY=matrix("grad", "gradY"),
        offsets=tensors.get("offsets"),
        solver=tuple(json.loads(metadata["solver"])),
        convention=metadata["convention"],
    )
