"""Rows of the training log and projection errors become the curves of the page, and sentences that say what they mean.

They are separate from the scenes because they are about the run as a whole, not about one mesh.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from flashheat.report.colours import readable, short
from flashheat.report.tables import direction, higher_is_better
from flashheat.report.view import MeshView

BOOKKEEPING = {"epoch", "step", "steps", "seconds", "time", "lr", "rate", "learning", "remaining", "samples"}


def history_charts(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One chart of the columns that hold "loss", then one of each other measure; none of epochs, times and rates."""
    names = dict.fromkeys(name for row in history for name in row)
    measures = [name for name in names if not BOOKKEEPING & set(name.lower().split("_"))]
    losses = [name for name in measures if "loss" in name.lower()]
    charts = [_history_chart("Loss", history, losses)] if losses else []
    others = [name for name in measures if name not in losses]
    return charts + [_history_chart(_measure_title(name), history, [name]) for name in others]


def projection_chart(views: Sequence[MeshView]) -> dict[str, Any] | None:
    """Relative L2 error against K, a faint line for each mesh and their mean; None where no mesh has it."""
    projected = [view for view in views if view.projection]
    if not projected:
        return None
    lines = [_line(view.name, dict(sorted(view.projection.items())), "faint") for view in projected]
    mean = _mean_projection(projected)
    if len(projected) == 1:
        lines[0]["role"] = "main"
    elif mean:
        lines.append(_line("mean", mean, "main"))
    ticks = sorted({size for view in projected for size in view.projection})
    net = _net_error(projected)
    if net is not None:
        lines.append(_line("this net", dict.fromkeys((ticks[0], ticks[-1]), net), "limit"))
    sizes = _axis("K, the number of smooth patterns (eigenvectors)", log=True, ticks=ticks)
    return {"title": "", "x": sizes, "y": _axis("relative L2 error"), "lines": lines}


def projection_sentence(views: Sequence[MeshView]) -> str:
    """What the projection error means, for one who has never heard of eigenvectors."""
    projected = [view for view in views if view.projection]
    mean = _mean_projection(projected)
    if not mean:
        return ""
    size, error = max(mean.items())
    where = "on this mesh" if len(projected) == 1 else f"on average over {len(projected)} meshes"
    net = _net_error(projected)
    reached = "" if net is None else f" The whole net has a relative L2 error of {short(net)} on the same."
    return (
        f"Diffusion can only produce mixtures of a shape's K smoothest patterns: with {size} of them, the best "
        f"possible mixture still misses the target by {short(error)} of its size (relative L2 error, {where}); the "
        f"rest has to come from the layers that work point by point and from the gradients.{reached}"
    )


def _mean_projection(views: Sequence[MeshView]) -> dict[int, float]:
    """The mean over all meshes, at each K that all of them have."""
    if not views:
        return {}
    common = sorted(set.intersection(*(set(view.projection) for view in views)))
    return {size: sum(view.projection[size] for view in views) / len(views) for size in common}


def _net_error(views: Sequence[MeshView]) -> float | None:
    scores = [view.score for view in views if view.kind == "scalar"]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(views) else None


def _measure_title(name: str) -> str:
    kind, _, measure = name.partition("_")
    plain = f"{readable(measure)} on meshes kept out of training" if kind in ("val", "test") else readable(name)
    return f"{plain[:1].upper()}{plain[1:]} ({direction(name)} is better)"


def _history_chart(title: str, history: Sequence[Mapping[str, Any]], names: list[str]) -> dict[str, Any]:
    epochs = [_number(row.get("epoch", index + 1)) for index, row in enumerate(history)]
    columns = {name: [_number(row.get(name)) for row in history] for name in names}
    roles = ("main", "second", *["faint"] * len(names))
    lines = [
        {"name": html.escape(readable(name)), "x": epochs, "y": column, "role": role}
        for (name, column), role in zip(columns.items(), roles, strict=False)
    ]
    values = [value for column in columns.values() for value in column if value is not None]
    falls_far = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    axes = {"x": _axis("epoch"), "y": _axis("value")}
    if falls_far and not higher_is_better(names[0]):
        axes["y"] = _axis("value (logarithmic scale)", log=True, ticks=_decade_ticks(min(values), max(values)))
    return {"title": title, **axes, "lines": lines}


def _axis(title: str, log: bool = False, ticks: Sequence[float] = ()) -> dict[str, Any]:
    return {"title": title, "log": log, "ticks": ticks}


def _decade_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between low > 0 and high; the powers alone over more than three decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]


def _line(name: str, points: Mapping[int, float], role: str) -> dict[str, Any]:
    """Plotly reads tags and entities in names; a mesh may be called "<b>"."""
    return {"name": html.escape(name), "x": list(points), "y": [_number(y) for y in points.values()], "role": role}


def _number(value: Any) -> float | None:
    """Six digits; None (a gap in the line) for what is absent or not finite."""
    number = float(value) if value not in (None, "") else math.nan
    return float(f"{number:.6g}") if math.isfinite(number) else None
