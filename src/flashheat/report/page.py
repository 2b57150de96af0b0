"""Scenes, charts and tables become one HTML file that opens offline, written whole or not at all.

It is separate because it alone knows the page's frame; what is in the frame is made by the files beside it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from flashheat.errors import MissingExtraError
from flashheat.files import make_folder, write_atomically
from flashheat.report.charts import history_charts, projection_chart, projection_sentence
from flashheat.report.scenes import scene
from flashheat.report.tables import Metrics, metrics_table, verdict
from flashheat.report.view import MeshView


def write_report(
    path: str | PathLike[str],
    *,
    title: str,
    summary: str,
    metrics: Metrics,
    history: Sequence[Mapping[str, float]],
    meshes: Sequence[MeshView],
    config: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Path:
    """Write the report of one run as a single HTML file; the same input gives the same bytes.

    Args:
        path: the file; its folder is made where it is absent.
        title, summary: the heading, and what the run was, in a sentence or two.
        metrics: row -> metric -> value. The first row is the net, the others are baselines.
        history: one row per epoch: "epoch", columns whose name holds "loss", and validation metrics.
        meshes: what to show in 3D, in this order.
        config: everything that is needed to repeat the run.
        notes: what a reader should know, a sentence each.

    Returns:
        The path.

    Raises:
        MissingExtraError: plotly is not installed.
        MeshError: a mesh whose vertices all coincide.
        FlashheatError: the file cannot be written; what was there before stays.
    """
    target = Path(path)
    page = _page(title, summary, metrics, history, meshes, config, notes)
    make_folder(target.parent)
    write_atomically(target, page)
    return target


def _page(
    title: str,
    summary: str,
    metrics: Metrics,
    history: Sequence[Mapping[str, float]],
    meshes: Sequence[MeshView],
    config: Mapping[str, Any],
    notes: Sequence[str],
) -> str:
    training, projection = history_charts(history), projection_chart(meshes)
    data = {"meshes": [scene(view) for view in meshes], "training": training, "projection": projection}
    sections = [
        _section("meshes", "Truth, prediction and error on the surface", _resource("meshes.html")) if meshes else "",
        _section("metrics", "How good that is", f"<p>{verdict(metrics)}</p>{metrics_table(metrics)}")
        if metrics
        else "",
        _section("training", "How the training went", '<div class="charts"></div>') if training else "",
        _projection_section(meshes) if projection else "",
        _notes_section(notes) if notes else "",
    ]
    return Template(_resource("page.html")).substitute(
        title=html.escape(title),
        summary=html.escape(summary),
        style=_resource("page.css"),
        sections="\n".join(section for section in sections if section),
        config=html.escape(json.dumps(config, indent=2, default=str, ensure_ascii=False)),
        plotly=_plotly_js(),
        data=_script_json(data),
        viewer=_resource("viewer.js"),
    )


def _section(name: str, heading: str, body: str) -> str:
    return f'<section id="{name}"><h2>{heading}</h2>{body}</section>'


def _projection_section(meshes: Sequence[MeshView]) -> str:
    body = f'<p>{projection_sentence(meshes)}</p><div class="charts"></div>'
    return _section("projection", "What diffusion alone could say at most", body)


def _notes_section(notes: Sequence[str]) -> str:
    return _section("notes", "Notes", f"<ul>{''.join(f'<li>{html.escape(note)}</li>' for note in notes)}</ul>")


def _script_json(data: Any) -> str:
    """JSON that no text in it can end the script element of."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError(
            'the report page needs plotly, which is not installed; install it with: pip install "flashheat[app]"'
        ) from error
    return get_plotlyjs()
