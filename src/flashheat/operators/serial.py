"""Operators become one file and come back, with a version and a checksum that a reader holds the file to.

It is separate from the store so that a user can also save the operators of one mesh, or a pack, by hand. The file is of
the safetensors format, but read here in one go: straight into page-locked memory for a GPU, which takes everything in
one copy and checks it there.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.operators.container import CACHED_BASES, Operators
from flashheat.operators.csr import CSR

FORMAT_VERSION = "2"
TENSORS = ("mass", "evals", "evecs", "frames", "faces", "edges", "k_valid", "n_components", "residuals")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
WORDS_AT_ONCE = 2**16  # on a CPU a block and its multiples then stay in the cache
ODD = 0x1E3779B97F4A7C15  # multiples of it, made odd: the weight of each word in a block


def save(operators: Operators, path: Path) -> None:
    """Write atomically: a reader sees the whole new file or what was there before, even after a kill or a power cut."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(operators).items()}
    header: dict[str, Any] = {}
    stop = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):  # so that all are aligned
        of, start = tensors[name], stop
        stop += of.numel() * of.element_size()
        header[name] = {"dtype": NAMES[of.dtype], "shape": list(of.shape), "data_offsets": [start, stop]}
    data = torch.cat([tensors[name].reshape(-1).view(torch.uint8) for name in header])
    metadata = {
        "format": FORMAT_VERSION,
        "convention": operators.convention,
        "solver": json.dumps(operators.solver),
    }
    header["__metadata__"] = metadata | {"checksum": _digest(data, header, metadata)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, len(text).to_bytes(8, "little") + text, data.numpy().data)


def load(path: Path, device: torch.device | str | None = None) -> Operators:
    """Read and check what `save` wrote; onto a device, where it is asked for.

    Raises:
        FlashheatError: when the file is absent, damaged, or of another version; no such device.
    """
    device = torch.device(device or "cpu")
    check_device(device)
    try:
        with path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), max(0, os.fstat(file.fileno()).st_size - 8)
            header = json.loads(file.read(min(length, size)))
            data = torch.empty(max(0, size - length), dtype=torch.uint8, pin_memory=device.type == "cuda")
            file.readinto(data.numpy().data)
        metadata = header.pop("__metadata__")
        version, expected = metadata.get("format"), metadata.pop("checksum", None)
    except OSError as error:
        raise FlashheatError(f"operators must be a file that can be read: {path}: {error.strerror}") from error
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise FlashheatError(
            f"operators must be a whole file of Operators.save: {path} is damaged, or another's ({error}); compute "
            "them again"
        ) from error
    if version != FORMAT_VERSION:
        raise FlashheatError(f"operators must be of format {FORMAT_VERSION}: {path} says {version}; compute them again")
    data = data.to(device, non_blocking=True)
    if _digest(data, header, metadata) != expected:
        raise FlashheatError(f"the checksum of {path} does not fit its content: it is damaged; compute it again")
    try:
        return _from_tensors({name: _part(data, **of) for name, of in header.items()}, metadata)
    except (RuntimeError, LookupError, TypeError, ValueError, OverflowError) as error:
        what = str(error).splitlines()[0]
        raise FlashheatError(f"{path} must hold operators, whole: {what}; compute them again") from error


def _digest(data: Tensor, header: dict[str, Any], metadata: dict[str, str]) -> str:
    """A digest of the metadata, of every tensor's name, dtype, shape and place, and of a weighted sum of all bytes.

    Words of 8 bytes, each times an odd number of its place, summed modulo 2^64, in blocks whose sums are summed so too:
    no change of one word escapes, others with a chance of 2^-64, and it takes as long as to read the memory.
    """
    words = torch.nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    weights = _weights(min(WORDS_AT_ONCE, len(words)), data.device)
    if data.is_cuda:
        whole = torch.nn.functional.pad(words, (0, -len(words) % max(1, len(weights))))
        blocks = (whole.view(-1, max(1, len(weights))) * weights).sum(1)
    else:
        parts = [(part * weights[: len(part)]).sum() for part in words.split(WORDS_AT_ONCE)]
        blocks = torch.stack(parts)
    total = int((blocks * _weights(len(blocks), data.device)).sum())
    described = json.dumps([header, metadata, len(data), total], sort_keys=True)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def _weights(n: int, device: torch.device) -> Tensor:
    return (torch.arange(1, n + 1, device=device) * ODD) | 1


def _part(data: Tensor, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    return data[slice(*data_offsets)].view(DTYPES[dtype]).view(shape)


def _tensors(operators: Operators) -> dict[str, Tensor]:
    tensors = {name: getattr(operators, name) for name in TENSORS}
    for name, matrix in (("L", operators.L), ("grad", operators.gradX)):
        tensors |= {f"{name}.indptr": matrix.indptr, f"{name}.indices": matrix.indices}
    tensors |= {f"{name}.values": getattr(operators, name).values for name in ("L", "gradX", "gradY")}
    if operators.basis_dtype != operators.dtype:  # its gradients cannot be made again from what was rounded
        tensors |= {name[1:]: getattr(operators, name[1:]) for name in CACHED_BASES}
    return tensors if operators.offsets is None else tensors | {"offsets": operators.offsets}


def _from_tensors(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Operators:
    V = tensors["mass"].shape[0]

    def matrix(pattern: str, values: str) -> CSR:
        return CSR(tensors[f"{pattern}.indptr"], tensors[f"{pattern}.indices"], tensors[f"{values}.values"], (V, V))

    operators = Operators(
        **{name: tensors[name] for name in TENSORS},
        L=matrix("L", "L"),
        gradX=matrix("grad", "gradX"),
        gradY=matrix("grad", "gradY"),
        offsets=tensors.get("offsets"),
        solver=tuple(json.loads(metadata["solver"])),
        convention=metadata["convention"],
    )
    operators.__dict__.update({name: tensors[name[1:]] for name in CACHED_BASES if name[1:] in tensors})
    return operators
