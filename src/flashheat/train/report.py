"""The result of a run becomes its page.

It is separate because the page needs a viewer library, which a run does without where it is not installed.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from flashheat.data import Sample
from flashheat.errors import MissingExtraError
from flashheat.tasks import Task
from flashheat.train.config import TrainConfig

logger = logging.getLogger("flashheat")

MAX_VIEWS = 3


def write_run_report(
    folder: Path,
    config: TrainConfig,
    task: Task,
    result: dict[str, Any],
    samples: Sequence[Sample],
    given: Sequence[Tensor],
    notes: Sequence[str],
) -> None:
    """Write `report.html` of a run: the first held-out meshes, metrics beside baselines, losses, configuration.

    Where the viewer library is not installed one log line says so.
    """
    from flashheat.report import MeshView, write_report

    views = [
        MeshView(
            name=sample.name,
            verts=sample.mesh.verts,
            faces=sample.mesh.faces,
            truth=sample.target.numpy(),
            prediction=answer.numpy(),
            kind="scalar" if task.kind == "field" else "class",
            projection=task.projection(sample),
            quantity=task.field_name,
        )
        for sample, answer in zip(samples[:MAX_VIEWS], given, strict=False)
    ]
    with (folder / "log.csv").open() as file:
        history = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    try:
        write_report(
            folder / "report.html",
            title=f"{task.name} on {config.dataset}",
            summary=_summary(task, result, len(samples)),
            metrics=result["metrics"],
            history=history,
            meshes=views,
            config=config.to_dict(),
            notes=notes,
        )
    except MissingExtraError as error:
        logger.warning("no report page: %s", error)


def _summary(task: Task, result: dict[str, Any], n_meshes: int) -> str:
    metric = next(iter(next(iter(result["metrics"].values()))))
    rows = ", ".join(f"{name} {values[metric]:.3f}" for name, values in result["metrics"].items())
    return f"{metric} on {n_meshes} held-out meshes: {rows}."
