"""Tasks, one file each: from a data set to a loss and a metric."""

from collections.abc import Mapping
from typing import Any

from flashheat.errors import FlashheatError
from flashheat.tasks.pressure import Pressure as Pressure
from flashheat.tasks.pressure import relative_l2 as relative_l2
from flashheat.tasks.segmentation import Segmentation as Segmentation
from flashheat.tasks.task import Task as Task

TASKS: dict[str, type[Pressure] | type[Segmentation]] = {task.name: task for task in (Pressure, Segmentation)}


def task_type(name: str) -> type[Pressure] | type[Segmentation]:
    """The class of a task by its name.

    Raises:
        FlashheatError: no task has that name.
    """
    if name not in TASKS:
        raise FlashheatError(f"a task must be one of {', '.join(TASKS)}; got {name!r}")
    return TASKS[name]


def task_from_state(name: str, state: Mapping[str, Any]) -> Task:
    """The task that `Task.state` describes."""
    return task_type(name)(**state)
