"""Examples become samples (operators, inputs and target of a mesh as tensors), and samples a packed batch.

It is separate because this is all that the training loop sees of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flashheat.data.example import Example
from flashheat.data.inputs import columns_of, make_inputs
from flashheat.data.potential_flow import random_rotation
from flashheat.mesh import Mesh
from flashheat.operators import Operators, OperatorStore


@dataclass(frozen=True, eq=False)
class Sample:
    """One mesh, ready for a network.

    Args:
        mesh: in the data's own coordinates.
        operators: of the *normalised* mesh.
        x: [V, C] inputs.
        target: [V] or [F], float32 or (classes) int64.
    """

    mesh: Mesh
    operators: Operators
    x: Tensor
    target: Tensor

    @property
    def name(self) -> str:
        """The mesh's name, unique in its data set."""
        return self.mesh.name


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples packed along the vertex axis.

    Args:
        x: [sum V, C].
        operators: packed (a single mesh: its own).
        target: [sum V] or [sum F].
        sizes: rows of `target` that each mesh has.
    """

    x: Tensor
    operators: Operators
    target: Tensor
    sizes: tuple[int, ...]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(self, x=self.x.to(device), operators=self.operators.to(device), target=self.target.to(device))


def prepare_mesh(
    mesh: Mesh, inputs: tuple[str, ...], k_eig: int, store: OperatorStore, stream: np.ndarray | None
) -> tuple[Operators, Tensor]:
    """Operators of the normalised mesh (from the store) and the inputs [V, C]."""
    unit, _ = mesh.normalise()
    operators = store.get(unit, k_eig=k_eig)
    _ = operators.gradX_evecs, operators.gradY_evecs  # made here once, then carried along by every batch
    return operators, make_inputs(inputs, unit, operators, stream)


def prepare_example(example: Example, inputs: tuple[str, ...], k_eig: int, store: OperatorStore) -> Sample:
    """An example with its operators and inputs.

    Raises:
        FlashheatError: as `make_inputs` and the operators do.
    """
    operators, x = prepare_mesh(example.mesh, inputs, k_eig, store, example.stream)
    target = torch.from_numpy(example.target)
    return Sample(example.mesh, operators, x, target.float() if target.is_floating_point() else target)


def collate(samples: Sequence[Sample]) -> Batch:
    """Pack samples in their order."""
    operators = [sample.operators for sample in samples]
    return Batch(
        torch.cat([sample.x for sample in samples]),
        operators[0] if len(samples) == 1 else Operators.pack(operators),
        torch.cat([sample.target for sample in samples]),
        tuple(len(sample.target) for sample in samples),
    )


def turned(sample: Sample, inputs: tuple[str, ...], rng: np.random.Generator) -> Sample:
    """The sample with its positions turned at random; all else it knows does not depend on the orientation."""
    columns = columns_of("xyz", inputs)
    if columns is None:
        return sample
    x = sample.x.clone()
    x[:, columns] = x[:, columns] @ torch.from_numpy(random_rotation(rng)).float().T
    return replace(sample, x=x)
