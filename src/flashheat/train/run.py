"""A run folder: made by `train`, gone on with by `resume`, read by evaluation and prediction.

It is separate from the loop because everything about names, files and results on the disk is here.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flashheat.data import Sample
from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.files import check_writable, make_folder, write_atomically
from flashheat.tasks import Task, task_from_state
from flashheat.train.checkpoint import finished_epochs, load_weights
from flashheat.train.config import TrainConfig
from flashheat.train.loop import CHECKPOINT_SECONDS, Fit, Writer, answers, fit
from flashheat.train.networks import MODEL, POINTWISE, make_network, n_parameters
from flashheat.train.prepare import Data, fit_task, prepare
from flashheat.train.progress import Progress, make_progress
from flashheat.train.report import write_run_report

logger = logging.getLogger("flashheat")

FILES = {MODEL: ("checkpoint.safetensors", "log.csv"), POINTWISE: ("pointwise.safetensors", "log_pointwise.csv")}


class Interrupted(FlashheatError):
    """Ctrl-C during training; the message says how to go on."""


@dataclass(frozen=True, eq=False)
class Run:
    """What `config.json` says of a run.

    Args:
        folder: the run folder.
        config: as it was given.
        task: fitted to the training set.
        names: of the meshes, {"train": [...], "test": [...]}.
        notes: of the data set.
    """

    folder: Path
    config: TrainConfig
    task: Task
    names: dict[str, list[str]]
    notes: tuple[str, ...] = ()

    def moved(
        self,
        data_root: str | Path | None = None,
        store: str | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> Run:
        """The same run with its data or operators elsewhere or on another device; None: where they were.

        Raises:
            FlashheatError: the device cannot be used here.
        """
        root = None if data_root is None else str(data_root)
        changes = {"data_root": root, "store": store, "device": device, "threads": threads}
        moved = replace(self, config=self.config.with_changes(**changes))
        check_device(moved.config.device)
        return moved

    def network(self) -> nn.Module:
        """The trained network, on the configured device.

        Raises:
            FlashheatError: there is no checkpoint, or it cannot be read.
        """
        net = make_network(MODEL, self.config, self.task)
        done = load_weights(self.folder / FILES[MODEL][0], net)
        if not (self.folder / "result.json").exists():
            logger.warning("%s is not finished; its checkpoint after %d steps is used", self.folder, done.step)
        return net


def train(config: TrainConfig, folder: str | Path, progress: Progress | None = None) -> Path:
    """Train a network and its baselines, and write everything about it into a run folder.

    Args:
        config: the whole configuration.
        folder: made when absent; it may not hold a run already.
        progress: where to show it; None: a bar on a terminal, else log lines.

    Returns:
        The folder, with config.json, checkpoint.safetensors (.json), log.csv, tensorboard/, result.json, report.html,
        and the baseline's pointwise.safetensors and log_pointwise.csv.

    Raises:
        FlashheatError: the data, the configuration or the disk do not serve; one line says why.
        Interrupted: Ctrl-C; `resume` goes on.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        raise FlashheatError(f"a run folder must be new; {folder} holds a run; resume it or choose another folder")
    progress = progress or make_progress()
    with (
        _gone_if_empty(folder),
        _interruptible("the operators made so far are kept; start again with the same command"),
    ):
        check_writable(make_folder(folder))
        data = prepare(config, progress)
        names = {part: [sample.name for sample in getattr(data, part)] for part in ("train", "test")}
        run = Run(folder, config, fit_task(config, data), names, data.split.notes)
        nets = _networks(run)
        _write_config(run)
    return _complete(run, data, nets, progress)


def resume(
    folder: str | Path,
    progress: Progress | None = None,
    data_root: str | Path | None = None,
    store: str | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> Path:
    """Go on with a run that was stopped, to the same numbers as if it had not been.

    Args:
        folder: the run.
        progress: None: a bar on a terminal, else log lines.
        data_root, store, device, threads: for this sitting, where not as the run began; the last two may change the
            last digits.

    Raises:
        FlashheatError: no run is there, its data have changed, or as `train` does.
    """
    run = open_run(folder)
    if (run.folder / "result.json").exists():
        logger.info("%s is finished already", run.folder)
        return run.folder
    run = run.moved(data_root, store, device, threads)
    progress = progress or make_progress()
    with _interruptible(_how_to_resume(run.folder)):
        data = prepare(run.config, progress)
    check_names(run, data)
    return _complete(run, data, _networks(run), progress)


def open_run(folder: str | Path) -> Run:
    """Read the configuration of a run.

    Raises:
        FlashheatError: no run is there, or its config.json cannot be read.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FlashheatError(f"a run folder must hold config.json; {folder} does not; name a folder that train made")
    try:
        record = json.loads(path.read_text())
        config = TrainConfig.from_dict(record["config"])
        task = task_from_state(config.task, record["task"])
        return Run(Path(folder), config, task, record["meshes"], tuple(record["notes"]))
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise FlashheatError(f"{path} must be as train wrote it; {error!r}") from error


def check_names(run: Run, data: Data) -> None:
    """Raise a FlashheatError when the data set no longer has the meshes that the run was made with."""
    for part in ("train", "test"):
        now = [sample.name for sample in getattr(data, part)]
        if now != run.names[part]:
            changed = sorted(set(now) ^ set(run.names[part])) or ["their order"]
            raise FlashheatError(
                f"the data of a run must not change; {run.config.data_root} has other {part} meshes than {run.folder} "
                f"was made with ({len(run.names[part])} then, {len(now)} now; {changed[0]} differs)"
            )


def score_set(task: Task, given: Sequence[Tensor], samples: Sequence[Sample]) -> dict[str, Any]:
    """Metrics of a set, of each of its meshes, and the projection error of the targets on the basis."""
    projections = [task.projection(sample) for sample in samples]
    common = sorted(set.intersection(*(set(errors) for errors in projections)))
    return {
        "metrics": task.score(given, samples),
        "per_mesh": {s.name: task.score([a], [s]) for a, s in zip(given, samples, strict=True)},
        "projection": {str(k): float(np.mean([errors[k] for errors in projections])) for k in common},
    }


def _networks(run: Run) -> dict[str, nn.Module]:
    return {which: make_network(which, run.config, run.task) for which in (MODEL, POINTWISE)}


def _complete(run: Run, data: Data, nets: dict[str, nn.Module], progress: Progress) -> Path:
    with _interruptible(_how_to_resume(run.folder)), _threads(run.config.threads):
        seconds = {which: _fit(which, net, run, data, progress) for which, net in nets.items()}
        _write_result(run, data, nets, seconds)
    return run.folder


@contextmanager
def _gone_if_empty(folder: Path) -> Iterator[None]:
    """When the block fails, the folders that it made and left empty are removed, so that the next try may have them."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not made, or not empty
            for path in made:
                path.rmdir()
        raise


@contextmanager
def _interruptible(how_to_go_on: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; {how_to_go_on}") from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _how_to_resume(folder: Path) -> str:
    return (
        f"at most {CHECKPOINT_SECONDS:.0f} seconds of training are lost; go on with: flashheat train --resume {folder}"
    )


def _fit(which: str, net: nn.Module, run: Run, data: Data, progress: Progress) -> float:
    checkpoint, log = (run.folder / name for name in FILES[which])
    job = Fit(which, net, run.task, run.config, data.train, data.test, checkpoint, log)
    with _tensorboard(run.folder / "tensorboard" / checkpoint.stem, checkpoint) as writer:
        return fit(job, progress, writer).seconds


@contextmanager
def _tensorboard(folder: Path, checkpoint: Path) -> Iterator[Writer | None]:
    """A TensorBoard log that drops what a killed sitting wrote after its last checkpoint; None where not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.warning("no TensorBoard log: tensorboard is not installed; pip install 'flashheat[app]'")
        yield None
        return
    epochs = finished_epochs(checkpoint)
    with SummaryWriter(str(folder), purge_step=epochs + 1 if epochs else None) as writer:
        yield writer


def _write_config(run: Run) -> None:
    import flashheat

    versions = {"flashheat": flashheat.__version__, "torch": torch.__version__, "numpy": np.__version__}
    record = {
        "config": run.config.to_dict(),
        "task": run.task.state(),
        "meshes": run.names,
        "notes": list(run.notes),
        "normalisation": "mean of the vertices to 0, largest radius to 1, for each mesh; outputs are not scaled by it",
        "versions": versions | {"python": platform.python_version()},
        "threads": run.config.threads or torch.get_num_threads(),
    }
    write_atomically(run.folder / "config.json", json.dumps(record, indent=1))


def _write_result(run: Run, data: Data, nets: dict[str, nn.Module], seconds: dict[str, float]) -> None:
    task, test = run.task, data.test
    given = {which: answers(net, task, test, run.config.device) for which, net in nets.items()}
    scores = score_set(task, given[MODEL], test)
    result = {
        "metrics": {
            MODEL: scores["metrics"],
            POINTWISE: task.score(given[POINTWISE], test),
            task.constant_name: task.score([task.constant(sample) for sample in test], test),
        },
        "per_mesh": scores["per_mesh"],
        "projection": scores["projection"],
        "parameters": {which: n_parameters(net) for which, net in nets.items()},
        "seed": run.config.seed,
        "seconds": seconds,
    }
    write_run_report(run.folder, run.config, task, result, test, given[MODEL], run.notes)
    write_atomically(run.folder / "result.json", json.dumps(result, indent=1))


def describe(folder: str | Path) -> str:
    """The result of a finished run as lines for a terminal: metrics beside the baselines, and where the page is.

    Raises:
        FlashheatError: the run is not finished.
    """
    path = Path(folder) / "result.json"
    if not path.exists():
        raise FlashheatError(f"a run must be finished to be described; {path} is not there; resume the run")
    metrics = json.loads(path.read_text())["metrics"]
    names = list(next(iter(metrics.values())))
    wide = max(map(len, metrics)) + 2
    lines = ["held-out meshes".ljust(wide) + "".join(f"{name:>14}" for name in names)]
    lines += [row.ljust(wide) + "".join(f"{values[name]:14.4g}" for name in names) for row, values in metrics.items()]
    page = Path(folder) / "report.html"
    return "\n".join([*lines, f"report page: {page.resolve()}"] if page.exists() else lines)
