"""Weights of the original DiffusionNet as weights of ours.

It is separate because the key map is the only thing that binds our module names to those of the original.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.nn.gradient_features import GradientVariant
from flashheat.nn.networks import DiffusionNet
from flashheat.nn.outputs import OutputsAt

_OURS_FROM_UPSTREAM = [
    (re.compile(r"^block_(\d+)\."), r"blocks.\1."),
    (re.compile(r"\.mlp\.\w*mlp_layer_0*(\d+)\."), r".mlp.layers.\1."),
]


def load_upstream(
    path: str | Path,
    outputs_at: OutputsAt = "vertices",
    last_activation: Callable[[Tensor], Tensor] | None = None,
    dropout: bool = True,
    gradient_variant: GradientVariant = "diffusion_net",
    prefix: str = "",
) -> DiffusionNet:
    """A `DiffusionNet` with the weights of a file that the original code saved.

    Args:
        path: a `.pth` file with a state dict (read with `weights_only=True`).
        outputs_at, last_activation, dropout, gradient_variant: what the weights do not say about the network.
        prefix: take only the keys that start with it, for instance "feature_extractor." for functional maps.

    Returns:
        The network on the CPU, in training mode; widths, depth and options as the weights' shapes tell.

    Raises:
        FlashheatError: the file cannot be read as weights, has none of a DiffusionNet under `prefix`, or keys or shapes
            that belong to no part of one.
    """
    state = _read(path)
    weights = from_upstream_keys({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
    matrices = {name for name, weight in weights.items() if weight.ndim == 2}
    if not matrices >= {"first_lin.weight", "blocks.0.mlp.layers.0.weight", "last_lin.weight"}:
        raise FlashheatError(
            f"`path` must hold DiffusionNet weights under the prefix {prefix!r}: {path} has "
            f"{'the keys ' + ', '.join(list(state)[:4]) + ' ...' if state else 'no keys'}"
        )
    net = DiffusionNet(
        **_architecture(weights),
        outputs_at=outputs_at,
        last_activation=last_activation,
        dropout=dropout,
        gradient_variant=gradient_variant,
    )
    try:
        missing, unexpected = net.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # shapes that disagree, a line each after the first
        reason = str(error).splitlines()[-1].strip()
        raise FlashheatError(f"`path` must hold the weights of one DiffusionNet: {path}: {reason}") from error
    if missing or unexpected:
        raise FlashheatError(
            f"`path` must hold the weights of one DiffusionNet: {path} lacks {missing[:3]} and has {unexpected[:3]}."
        )
    return net


def _read(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, named tensors and nothing else."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FlashheatError(f"`path` must be a file that can be read: {path}: {error.strerror or error}") from error
    except Exception as error:  # what torch raises on other bytes depends on the bytes
        raise FlashheatError(
            f"`path` must be a file of weights that torch.save wrote: {path} is none, or holds more than tensors; "
            "save net.state_dict()"
        ) from error
    if not isinstance(state, Mapping) or not all(
        isinstance(v, Tensor) and isinstance(k, str) for k, v in state.items()
    ):
        raise FlashheatError(
            f"`path` must hold named tensors, a state dict: {path} holds something else (a {type(state).__name__}); "
            "save net.state_dict()"
        )
    return dict(state)


def from_upstream_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict with the original's names replaced by ours."""
    weights = {}
    for key, value in state.items():
        for pattern, ours in _OURS_FROM_UPSTREAM:
            key = pattern.sub(ours, key)
        weights[key] = value
    return weights


def _architecture(weights: Mapping[str, Tensor]) -> dict:
    """The arguments of `DiffusionNet` that the weights' shapes tell."""
    width, in_channels = weights["first_lin.weight"].shape
    depth = len({key.split(".")[1] for key in weights if key.startswith("blocks.")})
    hidden = [v.shape[0] for k, v in weights.items() if re.fullmatch(r"blocks\.0\.mlp\.layers\.\d+\.weight", k)][:-1]
    return {
        "in_channels": in_channels,
        "out_channels": weights["last_lin.weight"].shape[0],
        "width": width,
        "depth": depth,
        "mlp_hidden": hidden,
        "with_gradient_features": any(".gradient_features." in key for key in weights),
        "with_gradient_rotations": any(".A_re." in key for key in weights),
    }
