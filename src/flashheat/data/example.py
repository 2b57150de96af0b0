"""What a data set gives: meshes with a target each, already split into training and test.

It is separate because every data set fills it and nothing after it needs to know which one did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh

At = Literal["vertices", "faces"]

# A network has one output a class at every vertex, so a stray number among the labels would fill the memory.
MAX_CLASSES = 10_000  # a class for each vertex of a template of 7,000, the most that meshes are labelled with, fits

MAX_FIELD = 1e18  # the loss sums squares of up to twice this over a mesh of radius 1, in float32 (up to 3.4e38)


@dataclass(frozen=True, eq=False)
class Example:
    """One mesh and what is to be learned on it.

    Args:
        mesh: in the data's own coordinates; its `name` is unique in the data set.
        target: [V] or [F]: a class (int64) or a field's value (float64) at each vertex or face of `mesh`.
        at: where the target lives.
        stream: [3] direction of the free stream in the mesh's coordinates, or None where the data has none.
    """

    mesh: Mesh
    target: np.ndarray
    at: At = "vertices"
    stream: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """A data set, split.

    Args:
        train, test: no mesh is in both.
        n_classes: number of classes; 0 for a field.
        notes: what a reader of the result should know about the data.
    """

    train: list[Example]
    test: list[Example]
    n_classes: int = 0
    notes: tuple[str, ...] = field(default=())


def checked_rows(values: np.ndarray, source: str) -> np.ndarray:
    """One value a row: `[N]`, or `[N, 1]` made flat, all of them finite real numbers.

    Raises:
        FlashheatError: another shape, not numbers, NaN or infinity; the message names `source`.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise FlashheatError(
            f"{source} must hold one number a row, [N] or [N, 1]; got {values.dtype} {list(values.shape)}"
        )
    bad = ~np.isfinite(values)
    if bad.any():
        raise FlashheatError(
            f"{source} must hold finite numbers; {bad.sum()} of {len(values)} are NaN or infinite, the first in row "
            f"{bad.argmax()} (counted from 0)"
        )
    return values


def checked_field(values: np.ndarray, source: str) -> np.ndarray:
    """A field's values as float64, small enough to train on in float32.

    Raises:
        FlashheatError: one is larger than MAX_FIELD in size; the message names `source`.
    """
    field = values.astype(np.float64)
    size = np.abs(field)
    if size.max(initial=0) > MAX_FIELD:
        row = size.argmax()
        raise FlashheatError(
            f"{source} must hold values of at most {MAX_FIELD:g} in size, whose squares fit float32; row {row} "
            f"(counted from 0) is {field[row]:g}; scale the field"
        )
    return field


def checked_labels(values: np.ndarray, source: str) -> np.ndarray:
    """Classes 0, 1, 2, ... as int64.

    Raises:
        FlashheatError: negative, not whole numbers, or MAX_CLASSES and more; the message names `source`.
    """
    with np.errstate(invalid="ignore"):  # what int64 cannot hold becomes another number, which is told below
        labels = values.astype(np.int64)
    wrong = (labels != values) | (labels < 0)
    if wrong.any():
        row = wrong.argmax()
        raise FlashheatError(f"{source} must hold classes 0, 1, 2, ...; row {row} (counted from 0) is {values[row]}")
    if labels.max(initial=0) >= MAX_CLASSES:
        row = labels.argmax()
        raise FlashheatError(
            f"{source} must hold classes from 0 to {MAX_CLASSES - 1} at most; row {row} (counted from 0) is "
            f"{labels[row]}; number the classes 0, 1, 2, ..."
        )
    return labels
