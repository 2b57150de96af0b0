"""The task `segmentation`: a class at each vertex or face, learned by cross entropy and scored by accuracy.

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


@dataclass(frozen=True)
class Segmentation:
    """One of `n_classes` classes at each vertex or face.

    Args:
        n_classes: classes are 0 to n_classes - 1.
        outputs_at: "vertices" or "faces".
        most_frequent: the class that most vertices or faces of the training set have.
    """

    n_classes: int
    outputs_at: At
    most_frequent: int

    name: ClassVar[str] = "segmentation"
    kind: ClassVar[str] = "classes"
    field_name: ClassVar[str] = "label"
    constant_name: ClassVar[str] = "predict the most frequent class"
    allows_rotation: ClassVar[bool] = True

    @property
    def out_channels(self) -> int:
        """One logit a class."""
        return self.n_classes

    @classmethod
    def fit(cls, train: Sequence[Sample], n_classes: int, outputs_at: At) -> Segmentation:
        """Find the most frequent class of the training set (the lowest of equals).

        Raises:
            FlashheatError: there is but one class.
        """
        if n_classes < 2:
            raise FlashheatError(f"segmentation needs at least two classes; the labels have {n_classes}")
        counts = torch.bincount(torch.cat([sample.target for sample in train]), minlength=n_classes)
        return cls(n_classes, outputs_at, int(counts.argmax()))

    def check(self, samples: Sequence[Sample]) -> None:
        """Raise a FlashheatError for a label that is no class of this task."""
        for sample in samples:
            if int(sample.target.max()) >= self.n_classes:
                raise FlashheatError(
                    f"labels must be below {self.n_classes}, the classes trained on; {sample.name} has "
                    f"{int(sample.target.max())}"
                )

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross entropy, the mean over a mesh's elements and then over the meshes."""
        parts = zip(output.split(batch.sizes), batch.target.split(batch.sizes), strict=True)
        return torch.stack([torch.nn.functional.cross_entropy(*part) for part in parts]).mean()

    def answer(self, output: Tensor) -> Tensor:
        """The class with the highest logit, [N]."""
        return output.argmax(dim=1)

    def constant(self, sample: Sample) -> Tensor:
        """The most frequent class everywhere."""
        return torch.full_like(sample.target, self.most_frequent)

    def score(self, answers: Sequence[Tensor], samples: Sequence[Sample]) -> dict[str, float]:
        """Metrics of a set, over all its vertices (or faces), those without area included.

        accuracy: the part of them with the right class
        mean_iou: of (answer and truth) / (answer or truth), the mean over the classes that either has
        """
        p, t = torch.cat(list(answers)), torch.cat([sample.target for sample in samples])
        right = torch.bincount(t[p == t], minlength=self.n_classes).double()
        either = torch.bincount(torch.cat([p, t]), minlength=self.n_classes).double() - right
        present = either > 0
        return {
            "accuracy": float((p == t).double().mean()),
            "mean_iou": float((right[present] / either[present]).mean()),
        }

    def projection(self, sample: Sample) -> dict[int, float]:
        """K -> relative L2 error of projecting the classes' indicator functions on the lowest K eigenvectors.

        Face labels become, at a vertex, the shares of each class among its faces.
        """
        o, C = sample.operators, self.n_classes
        evecs, mass = o.evecs.double(), o.mass.double()
        if self.outputs_at == "vertices":
            moments = (mass[:, None] * evecs).new_zeros(C, o.k_eig).index_add(0, sample.target, mass[:, None] * evecs)
            return projection_errors(moments.T, float(mass.sum()))
        corners, labels = o.faces.reshape(-1), sample.target.repeat_interleave(3)
        shares = torch.bincount(corners * C + labels, minlength=o.n_verts * C).reshape(o.n_verts, C).double()
        shares /= shares.sum(dim=1, keepdim=True).clamp(min=1)
        return projection_errors(evecs.T @ (mass[:, None] * shares), float((mass[:, None] * shares.square()).sum()))

    def state(self) -> dict[str, Any]:
        """The three arguments."""
        return asdict(self)
