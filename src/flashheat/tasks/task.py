"""What the training loop asks of a task: a loss to lower, an answer to give, a score to report.

It is separate so that the loop is one for all tasks and a task knows nothing of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from flashheat.data import Batch, Sample
from flashheat.data.example import At

PROJECTION_K = (8, 16, 32, 64, 128, 256, 512)


class Task(Protocol):
    """A task fitted to its training set: a frozen dataclass of plain values, so that a run can record it."""

    name: ClassVar[str]
    kind: ClassVar[str]
    field_name: ClassVar[str]
    constant_name: ClassVar[str]
    allows_rotation: ClassVar[bool]

    @property
    def outputs_at(self) -> At:
        """Where the network's outputs live."""

    @property
    def out_channels(self) -> int:
        """How many numbers the network gives at each of them."""

    def check(self, samples: Sequence[Sample]) -> None:
        """Raise a FlashheatError that names the mesh where a target is not usable."""

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """A scalar to lower, from the network's output on a batch: the mean over its meshes."""

    def answer(self, output: Tensor) -> Tensor:
        """The network's output [N, out_channels] as what a person asked for, [N]."""

    def constant(self, sample: Sample) -> Tensor:
        """The best answer that looks at no mesh, in the shape of `sample.target`."""

    def score(self, answers: Sequence[Tensor], samples: Sequence[Sample]) -> dict[str, float]:
        """The metrics of a set of meshes; the first one is the one to compare by."""

    def projection(self, sample: Sample) -> dict[int, float]:
        """K -> area-weighted relative L2 error of projecting the target on the lowest K eigenvectors."""

    def state(self) -> dict[str, Any]:
        """Plain values from which `task_from_state` makes the same task again."""


def projection_errors(coefficients: Tensor, norm2: float) -> dict[int, float]:
    """Relative error of a projection, `sqrt(1 - sum_{k<K} |f_k|^2 / |f|^2)`, at several K.

    Args:
        coefficients: [K, C] float64, `evecs^T (mass * f)` for M-orthonormal evecs.
        norm2: `sum mass f^2`.

    Returns:
        Powers of two up to K, and K itself.
    """
    caught = coefficients.square().sum(dim=1).cumsum(0)
    k_eig = len(coefficients)
    ks = [k for k in PROJECTION_K if k < k_eig] + [k_eig]
    return {k: float(torch.sqrt((1 - caught[k - 1] / norm2).clamp(min=0))) for k in ks}
