"""The two networks of a run: DiffusionNet, and the same without diffusion and gradients at the same parameter count.

They are separate so that training, evaluation and prediction build exactly the same ones from a configuration.
"""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import nn

from flashheat.data.inputs import n_channels
from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.nn import DiffusionNet, PointwiseNet
from flashheat.tasks import Task
from flashheat.train.config import TrainConfig

ALLOWED_MISMATCH = 0.02
MODEL, POINTWISE = "DiffusionNet", "without diffusion"


def make_network(which: str, config: TrainConfig, task: Task) -> nn.Module:
    """MODEL or POINTWISE, on the configured device, with weights that follow from the seed.

    Raises:
        FlashheatError: the device is not there, or its memory does not hold the network.
    """
    check_device(config.device)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            if which == MODEL:
                net: nn.Module = _diffusion_net(config, task)
            else:
                net = _pointwise(config, task, *pointwise_size(config, task))
        return net.to(config.device)
    except RuntimeError as error:  # how PyTorch says that memory is short
        raise FlashheatError(
            f"the network must fit into memory; width {config.width} and depth {config.depth} do not: "
            f"{str(error).splitlines()[0]}; choose smaller ones"
        ) from error


def n_parameters(net: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(parameter.numel() for parameter in net.parameters())


def pointwise_size(config: TrainConfig, task: Task) -> tuple[int, int]:
    """Width and depth of the pointwise network whose parameter count is the model's, within 2 % where one exists.

    The model's own depth if it serves; else up to two blocks more or fewer; of equals the closest count.
    """
    with torch.device("meta"):
        wanted = n_parameters(_diffusion_net(config, task))
        sizes = [
            (width + narrower, depth)
            for depth in range(max(config.depth - 2, 1), config.depth + 3)
            for width in [_first_width(wanted, config, task, depth)]
            for narrower in (-1, 0)
            if width + narrower > 0
        ]

        def badness(size: tuple[int, int]) -> tuple[bool, int, float]:
            mismatch = abs(n_parameters(_pointwise(config, task, *size)) / wanted - 1)
            return mismatch > ALLOWED_MISMATCH, abs(size[1] - config.depth), mismatch

        return min(sizes, key=badness)


def _first_width(wanted: int, config: TrainConfig, task: Task, depth: int) -> int:
    """The smallest width whose count is at least `wanted`."""
    widths = range(1, 8 * config.width + 8)
    return widths[bisect_left(widths, wanted, key=lambda width: n_parameters(_pointwise(config, task, width, depth)))]


def _diffusion_net(config: TrainConfig, task: Task) -> DiffusionNet:
    return DiffusionNet(
        n_channels(config.input_names),
        task.out_channels,
        width=config.width,
        depth=config.depth,
        outputs_at=task.outputs_at,
        dropout=config.dropout,
    )


def _pointwise(config: TrainConfig, task: Task, width: int, depth: int) -> PointwiseNet:
    return PointwiseNet(
        n_channels(config.input_names), task.out_channels, width, depth, task.outputs_at, dropout=config.dropout
    )
