"""A half-finished training becomes one file, and goes on from it as if it had never stopped.

It is separate because the promise is kept here: weights, optimiser and counters are one safetensors file that is
replaced as a whole, so a kill at any moment leaves a consistent state; a checksum tells damage. The .json beside it is
for people.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashheat.errors import FlashheatError
from flashheat.files import write_atomically

FORMAT_VERSION = 2


@dataclass
class Progressed:
    """How far a training is. Random numbers need no state: those of a step follow from the seed and the step.

    Args:
        step: optimiser steps done.
        loss_sum: sum of the losses of this epoch's steps so far.
        seconds: time spent in steps, over all sittings.
        rows: one a finished epoch, as in log.csv.
    """

    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    rows: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(path: Path, net: nn.Module, optimiser: torch.optim.Optimizer, progressed: Progressed) -> None:
    """Replace the checkpoint at `path`, atomically.

    Raises:
        FlashheatError: the run folder cannot be written or the disk is full; the checkpoint before it is intact.
    """
    from safetensors.torch import save

    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    state = json.dumps({"format": FORMAT_VERSION, **asdict(progressed)})
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"progress": state}
    write_atomically(path, save(plain, metadata | {"checksum": checksum(plain, metadata)}))
    write_atomically(path.with_suffix(".json"), state)


def load_checkpoint(path: Path, net: nn.Module, optimiser: torch.optim.Optimizer) -> Progressed:
    """Put net and optimiser into the state at `path`; a start from nothing where there is none.

    Raises:
        FlashheatError: the checkpoint is damaged or of another network.
    """
    if not path.exists():
        return Progressed()
    tensors, progressed = _read(path)
    _load_net(net, tensors, path)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimiser.").items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return progressed


def load_weights(path: Path, net: nn.Module) -> Progressed:
    """Put only the weights at `path` into `net`.

    Raises:
        FlashheatError: there is no checkpoint, or it is damaged or of another network.
    """
    if not path.exists():
        raise FlashheatError(f"a run must have a checkpoint; {path} is not there; train first")
    tensors, progressed = _read(path)
    _load_net(net, tensors, path)
    return progressed


def finished_epochs(path: Path) -> int:
    """How many epochs the training at `path` has finished; 0 where there is no checkpoint."""
    return len(_read(path)[1].rows) if path.exists() else 0


def _read(path: Path) -> tuple[dict[str, Tensor], Progressed]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        given = metadata.pop("checksum", None)
        state: dict[str, Any] = json.loads(metadata["progress"])
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise FlashheatError(f"the checkpoint {path} must be readable; {error}; remove it to train anew") from error
    if given is not None and given != checksum(tensors, metadata):
        raise FlashheatError(f"the checkpoint {path} must fit its checksum; it is damaged; remove it to train anew")
    if state.pop("format", None) != FORMAT_VERSION or given is None:
        raise FlashheatError(f"the checkpoint {path} must be of format {FORMAT_VERSION}; use the version that wrote it")
    return tensors, Progressed(**state)


def _load_net(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        net.load_state_dict(_part(tensors, "net."))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise FlashheatError(f"the checkpoint {path} must be of this network; {reason}") from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """A digest of the metadata and of every tensor's name, dtype, shape and bytes."""
    digest = hashlib.blake2b(repr(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
