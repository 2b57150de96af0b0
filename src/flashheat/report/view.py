"""Arrays become one checked `MeshView`: a mesh with what was to be predicted on it, and what was.

It is separate so that a wrong length or a NaN is refused where the arrays meet, before anything is drawn or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh
from flashheat.mesh.mesh import face_areas
from flashheat.operators.laplacian import vertex_areas


@dataclass(frozen=True, eq=False)
class MeshView:
    """One mesh of the report.

    Args:
        name: what the page calls it; any text.
        verts: [V,3] in the user's unit of length.
        faces: [F,3] vertex indices; empty for a point cloud.
        truth: one value per vertex [V], or per face [F]; where V = F the values are taken to be at vertices.
            None where the truth is not known.
        prediction: as many values as `truth`.
        kind: "scalar" for a field, "class" for labels 0, 1, 2, ...
        class_names: the name of each class, for kind "class".
        projection: K -> relative L2 error of `truth` after its projection on the lowest K eigenvectors.
        quantity: what a scalar field is, with its unit, for the colour bars: "pressure (Pa)".

    Raises:
        MeshError: what `Mesh` refuses.
        FlashheatError: wrong lengths, NaN or infinity, labels that are not classes.
    """

    name: str
    verts: np.ndarray
    faces: np.ndarray
    truth: np.ndarray | None
    prediction: np.ndarray
    kind: Literal["scalar", "class"] = "scalar"
    class_names: Sequence[str] | None = None
    projection: Mapping[int, float] = field(default_factory=dict)
    quantity: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("scalar", "class"):
            raise FlashheatError(f'kind must be "scalar" or "class"; got {self.kind!r}')
        mesh = Mesh(self.verts, self.faces, name=self.name)
        object.__setattr__(self, "verts", mesh.verts)
        object.__setattr__(self, "faces", mesh.faces)
        object.__setattr__(self, "prediction", self._checked("prediction", self.prediction))
        if self.truth is not None:
            object.__setattr__(self, "truth", self._checked("truth", self.truth))
            self._check_lengths()

    @property
    def at(self) -> Literal["vertices", "faces"]:
        """Where the values live."""
        return "vertices" if len(self.prediction) == len(self.verts) else "faces"

    @property
    def n_classes(self) -> int:
        """Number of classes: that of `class_names`, or one more than the largest label."""
        if self.class_names is not None:
            return len(self.class_names)
        return 1 + int(max(values.max() for values in (self.truth, self.prediction) if values is not None))

    @property
    def areas(self) -> np.ndarray:
        """The area that each value stands for [V] or [F] (length^2); ones for a point cloud."""
        if not len(self.faces):
            return np.ones(len(self.verts))
        if self.at == "faces":
            return face_areas(self.verts, self.faces)
        return vertex_areas(torch.from_numpy(self.verts), torch.from_numpy(self.faces)).numpy()

    @property
    def score(self) -> float | None:
        """Area-weighted relative L2 error of a field, or the share of right labels; None where it is not defined.

        sqrt(sum_v a_v (p_v - t_v)^2 / sum_v a_v t_v^2)
        """
        if self.truth is None:
            return None
        if self.kind == "class":
            return float(np.mean(self.prediction == self.truth))
        size = self.areas @ self.truth**2
        return float(np.sqrt(self.areas @ (self.prediction - self.truth) ** 2 / size)) if size > 0 else None

    def _checked(self, what: str, given: Any) -> np.ndarray:
        values = np.asarray(given)
        if values.ndim != 1 or values.dtype.kind not in "fiub":
            raise FlashheatError(
                f"{what} of {self.name} must be one number per vertex or face; got {values.dtype} {list(values.shape)}"
            )
        if len(values) not in (len(self.verts), len(self.faces)):
            raise FlashheatError(
                f"{what} of {self.name} must have one value per vertex of `verts` ({len(self.verts)}) or per face of "
                f"`faces` ({len(self.faces)}); got {len(values)}; was it made for another mesh?"
            )
        self._check_finite(what, values)
        return self._labels(what, values) if self.kind == "class" else values.astype(np.float64)

    def _check_lengths(self) -> None:
        if self.truth is not None and len(self.truth) != len(self.prediction):
            raise FlashheatError(
                f"truth and prediction of {self.name} must have the same length; got truth [{len(self.truth)}], "
                f"prediction [{len(self.prediction)}]; one is at vertices and the other at faces"
            )

    def _check_finite(self, what: str, values: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))  # what the page can hold
        if bad.any():
            raise FlashheatError(
                f"{what} of {self.name} must be finite 32-bit numbers; {bad.sum()} of {len(values)} are NaN, infinite "
                f"or too large, the first in row {bad.argmax()}; did the training diverge? try a lower learning rate"
            )

    def _labels(self, what: str, values: np.ndarray) -> np.ndarray:
        labels = values.astype(np.int64)
        limit = np.inf if self.class_names is None else len(self.class_names)
        bad = (labels != values) | (labels < 0) | (labels >= limit)
        if bad.any():
            last = "" if self.class_names is None else f", at most {limit - 1} (the last of `class_names`)"
            raise FlashheatError(
                f"{what} of {self.name} must hold classes 0, 1, 2, ...{last}; row {bad.argmax()} holds "
                f"{values[bad.argmax()]}"
            )
        return labels
