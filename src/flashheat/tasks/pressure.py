"""The task `pressure`: a scalar field at the vertices, scored by its area-weighted relative L2 error.

It is separate as every task is: data set -> loss -> metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flashheat.data import Batch, Sample
from flashheat.data.example import At
from flashheat.errors import FlashheatError
from flashheat.tasks.task import projection_errors

TINY = 1e-30


def relative_l2(p: Tensor, t: Tensor, mass: Tensor) -> Tensor:
    """Area-weighted relative L2 error of one mesh: `sqrt(sum mass (p - t)^2 / sum mass t^2)`; all [V]."""
    return torch.sqrt((mass * (p - t).square()).sum().clamp(min=TINY) / (mass * t.square()).sum())


@dataclass(frozen=True)
class Pressure:
    """A field, standardised for the network by its area-weighted mean and deviation over the training meshes.

    Args:
        mean, std: in the field's own unit; each training mesh counts the same.
    """

    mean: float
    std: float

    name: ClassVar[str] = "pressure"
    kind: ClassVar[str] = "field"
    field_name: ClassVar[str] = "pressure"
    constant_name: ClassVar[str] = "predict the mean"
    allows_rotation: ClassVar[bool] = False  # the stream, if only positions tell it, would not turn with the body
    outputs_at: ClassVar[At] = "vertices"
    out_channels: ClassVar[int] = 1

    @classmethod
    def fit(cls, train: Sequence[Sample]) -> Pressure:
        """Mean and deviation of the training set.

        Raises:
            FlashheatError: the field is the same everywhere, so there is nothing to learn.
        """
        weights, values = _weights_and_values(train)
        mean = float(weights @ values)
        std = float(torch.sqrt(weights @ (values - mean).square()))
        if not std > 1e-12 * max(abs(mean), TINY):
            raise FlashheatError(f"the field must vary over the training meshes; it is {mean:g} everywhere")
        return cls(mean, std)

    def check(self, samples: Sequence[Sample]) -> None:
        """Raise a FlashheatError for a field that is zero wherever the mesh has area: no error is relative to that."""
        for sample in samples:
            if not (sample.operators.mass * sample.target.square()).sum() > 0:
                raise FlashheatError(
                    f"a field must not be zero all over a mesh; that of {sample.name} is; leave the mesh out"
                )

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The mean over the batch's meshes of their relative L2 error: what the score is."""
        parts = zip(
            self.answer(output).split(batch.sizes),
            batch.target.split(batch.sizes),
            batch.operators.mass.split(batch.sizes),
            strict=True,
        )
        return torch.stack([relative_l2(*part) for part in parts]).mean()

    def answer(self, output: Tensor) -> Tensor:
        """The field in its own unit, [V]."""
        return output[:, 0] * self.std + self.mean

    def constant(self, sample: Sample) -> Tensor:
        """The training set's mean everywhere."""
        return torch.full_like(sample.target, self.mean)

    def score(self, answers: Sequence[Tensor], samples: Sequence[Sample]) -> dict[str, float]:
        """Metrics of a set; p is the answer, t the target, sums run over vertices, weights are areas.

        relative_l2: mean over meshes of sqrt(sum mass (p - t)^2 / sum mass t^2)
        mae:         mean over meshes of sum mass |p - t| / sum mass
        r2:          1 - sum w (p - t)^2 / sum w (t - mean)^2 over all vertices of the set, w = mass / (mesh's area)
        """
        masses = [sample.operators.mass.double() for sample in samples]
        targets = [sample.target.double() for sample in samples]
        pairs = list(zip([answer.double() for answer in answers], targets, masses, strict=True))
        errors = [relative_l2(p, t, mass) for p, t, mass in pairs]
        absolute = [(mass * (p - t).abs()).sum() / mass.sum() for p, t, mass in pairs]
        weights, t = _weights_and_values(samples)
        residual = weights @ (torch.cat([p for p, _, _ in pairs]) - t).square()
        total = weights @ (t - weights @ t).square()
        return {
            "relative_l2": float(torch.stack(errors).mean()),
            "mae": float(torch.stack(absolute).mean()),
            "r2": float(1 - residual / total.clamp(min=TINY)),
        }

    def projection(self, sample: Sample) -> dict[int, float]:
        """K -> relative L2 error of the target's projection on the lowest K eigenvectors."""
        mass, target = sample.operators.mass.double(), sample.target.double()
        coefficients = sample.operators.evecs.double().T @ (mass * target)[:, None]
        return projection_errors(coefficients, float((mass * target.square()).sum()))

    def state(self) -> dict[str, Any]:
        """The mean and deviation."""
        return asdict(self)


def _weights_and_values(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Area weights that sum to 1 over the set, each mesh counting the same, and the targets; [sum V] float64."""
    masses = [sample.operators.mass.double() for sample in samples]
    weights = torch.cat([mass / mass.sum() for mass in masses]) / len(samples)
    return weights, torch.cat([sample.target.double() for sample in samples])
