"""A `MeshView` becomes what the page's viewer draws: coordinates and values as bytes, colour scales and captions.

It is separate from the page so that everything that decides what is seen can be tested without a browser.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from flashheat.mesh import Mesh
from flashheat.report.colours import PERCENTILES, Scale, class_scale, error_scale, field_scale, right_wrong_scale, short
from flashheat.report.thinning import thinned
from flashheat.report.view import MeshView


def scene(view: MeshView) -> dict[str, Any]:
    """One mesh with its panels (truth, prediction, error) and their colour scales.

    Positions are moved to the mean and scaled to radius 1, so that 32 bits are enough wherever the mesh lies.

    Raises:
        MeshError: all vertices coincide.
    """
    shown = thinned(view)
    mesh, _ = Mesh(shown.verts, shown.faces, name=view.name).normalise()
    panels, scales = _class_panels(view, shown) if view.kind == "class" else _scalar_panels(view, shown)
    return {
        "label": view.name + _score_text(view),
        "caption": _caption(view, shown),
        "xyz": [packed(column.astype(np.float32)) for column in mesh.verts.T],
        "ijk": [packed(_smallest(column, mesh.n_verts)) for column in mesh.faces.T] if mesh.n_faces else [],
        "aspect": _aspect(mesh.verts),
        "drawn": _drawn_at(view),
        "hover": shown is view,
        "panels": panels,
        "scales": scales,
    }


def packed(values: np.ndarray) -> list[str]:
    """An array as its type and its little-endian bytes in base64: ["f4", "AACAPw=="]."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return [f"{little.dtype.kind}{little.dtype.itemsize}", base64.b64encode(little.tobytes()).decode()]


def face_votes(labels: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The label that most corners of each face have, [F]; the first corner's where all three differ."""
    a, b, c = labels[faces].T
    return np.where(b == c, b, a)


def _aspect(verts: np.ndarray) -> list[float]:
    """The sides of the box that the mesh fills, its diagonal 1: then every mesh fits the same camera."""
    extents = np.ptp(verts, axis=0)
    return [round(float(side), 4) for side in np.maximum(extents / np.linalg.norm(extents), 0.005)]


def _drawn_at(view: MeshView) -> str:
    """Classes are drawn triangle by triangle: between two vertices of classes 2 and 6 there is no class 4."""
    if not len(view.faces):
        return "point"
    return "triangle" if view.at == "faces" or view.kind == "class" else "vertex"


def _scalar_panels(view: MeshView, shown: MeshView) -> tuple[list[dict[str, Any]], list[Scale]]:
    what = view.quantity or "value"
    if view.truth is None or shown.truth is None:
        return [_panel("Prediction", "prediction", shown.prediction, 0)], [field_scale([view.prediction], what)]
    panels = [
        _panel("Truth", "truth", shown.truth, 0),
        _panel("Prediction", "prediction", shown.prediction, 0),
        _panel("Error: prediction minus truth", "error", shown.prediction - shown.truth, 1),
    ]
    error = error_scale(view.prediction - view.truth, f"error of {what}")
    return panels, [field_scale([view.truth, view.prediction], what), error]


def _class_panels(view: MeshView, shown: MeshView) -> tuple[list[dict[str, Any]], list[Scale]]:
    known = [values for values in (view.truth, view.prediction) if values is not None]
    names = view.class_names or [f"class {index}" for index in range(view.n_classes)]
    scales = [class_scale(names, np.unique(np.concatenate(known)))]
    prediction = _panel("Prediction", "prediction", _drawn_labels(shown, shown.prediction), 0)
    if view.truth is None or shown.truth is None:
        return [prediction], scales
    n_wrong = int((view.truth != view.prediction).sum())
    scales.append(right_wrong_scale(len(view.truth) - n_wrong, n_wrong, view.at))
    truth = _panel("Truth", "truth", _drawn_labels(shown, shown.truth), 0)
    wrong = (shown.truth != shown.prediction).astype(np.int64)
    return [truth, prediction, _panel("Where the prediction is wrong", "", _drawn_labels(shown, wrong), 1)], scales


def _drawn_labels(view: MeshView, labels: np.ndarray) -> np.ndarray:
    if view.at == "vertices" and len(view.faces):
        labels = face_votes(labels, view.faces)
    return _smallest(labels, int(labels.max()) + 1)


def _smallest(indices: np.ndarray, limit: int) -> np.ndarray:
    """Indices 0..limit-1 in the smallest unsigned integers that hold them."""
    return indices.astype(np.uint8 if limit <= 2**8 else np.uint16 if limit <= 2**16 else np.uint32)


def _panel(title: str, short_title: str, values: np.ndarray, scale: int) -> dict[str, Any]:
    return {
        "title": title,
        "short": short_title,
        "values": packed(values.astype(np.float32) if values.dtype.kind == "f" else values),
        "scale": scale,
    }


def _score_text(view: MeshView) -> str:
    score = view.score
    if score is None:
        return ""
    if view.kind == "class":
        return f" · {100 * score:.1f} % of {view.at} right"
    return f" · relative L2 error {short(score)}"


def _range_text(view: MeshView) -> str:
    """Which values the colours of a field cover."""
    low, high = (f"{percentile:.0f}{suffix}" for percentile, suffix in zip(PERCENTILES, ("st", "th"), strict=True))
    beyond = "values beyond have the colour of the end."
    if view.truth is None:
        return f"Colours range from the {low} to the {high} percentile; {beyond}"
    return (
        f"Truth and prediction share one range of colours, from the {low} to the {high} percentile of both together; "
        f"the error's range ends at the {high} percentile of its size; {beyond}"
    )


def _caption(view: MeshView, shown: MeshView) -> str:
    """What an observer needs to know about this picture, in sentences."""
    size = " × ".join(short(extent) for extent in np.ptp(view.verts, axis=0))
    what = f"{len(view.faces):,} triangles" if len(view.faces) else "no triangles: drawn as points"
    parts = [f"{len(view.verts):,} vertices, {what}; extent {size} along x, y, z in the file's unit of length."]
    if view.kind == "class" and view.at == "vertices" and len(view.faces):
        parts.append("Each triangle has the class that most of its corners have.")
    if view.kind == "scalar":
        parts.append(_range_text(view))
    unused = len(view.verts) - len(np.unique(view.faces))
    if len(view.faces) and view.at == "vertices" and unused:
        parts.append(f"{unused:,} vertices belong to no triangle: they count in every figure but cannot be drawn.")
    if shown is not view:
        parts.append(
            f"The picture is thinned to {len(shown.verts):,} vertices, the first in each cell of a fine grid, so that "
            "it turns smoothly; it has no read-out. Every figure is of the whole mesh."
        )
    return " ".join(parts)
