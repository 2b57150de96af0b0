"""A configuration becomes samples with operators, and the task fitted to them.

It is separate because `precompute` does this and no more, and evaluation does it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashheat.data import Sample, Split, load_car, load_flow, load_folder, load_rna, prepare_example
from flashheat.data.example import Example
from flashheat.devices import check_device
from flashheat.errors import FlashheatError, MissingExtraError
from flashheat.operators import OperatorStore
from flashheat.tasks import Segmentation, Task, task_type
from flashheat.tasks.pressure import Pressure
from flashheat.train.config import TrainConfig
from flashheat.train.progress import Progress

logger = logging.getLogger("flashheat")


@dataclass(frozen=True, eq=False)
class Data:
    """The samples of a run and the split they came from."""

    split: Split
    train: list[Sample]
    test: list[Sample]


def open_store(folder: str) -> OperatorStore:
    """The store of operators in `folder`; "": in the user's cache folder.

    Raises:
        FlashheatError: it cannot be made or written.
        MissingExtraError: the default folder is asked for and platformdirs is not installed.
    """
    if folder:
        return OperatorStore(folder)
    try:
        from platformdirs import user_cache_dir
    except ImportError as error:
        raise MissingExtraError("the default store needs platformdirs: pip install 'flashheat[app]'") from error
    return OperatorStore(Path(user_cache_dir("flashheat")) / "operators")


def load_split(config: TrainConfig) -> Split:
    """Read the configured data set.

    Raises:
        FlashheatError: the data are absent or not as they must be.
    """
    stream = None if config.stream is None else np.array(config.stream)
    if config.dataset == "rna":
        return load_rna(config.data_root)
    if config.dataset == "car":
        return load_car(config.data_root, stream)
    if config.dataset == "folder":
        kind = task_type(config.task).kind
        return load_folder(config.data_root, kind, config.test_fraction, config.seed, stream, config.labels_at)  # type: ignore[arg-type]
    return load_flow(config.n_train, config.n_test, config.seed)


def prepare(config: TrainConfig, progress: Progress) -> Data:
    """Read the data set and make, or fetch from the store, the operators and inputs of every mesh.

    Raises:
        FlashheatError: as `load_split`, the operators and the inputs do.
    """
    check_device(config.device)
    split = load_split(config)
    samples = prepare_examples([*split.train, *split.test], config, progress)
    return Data(split, samples[: len(split.train)], samples[len(split.train) :])


def prepare_examples(examples: Sequence[Example], config: TrainConfig, progress: Progress) -> list[Sample]:
    """Operators and inputs of each example, with progress."""
    store = open_store(config.store)
    samples = []
    with progress.stage("operators", len(examples), unit="meshes") as advance:
        for example in examples:
            samples.append(_prepare(example, config, store))
            advance(example.mesh.name)
    return samples


def fit_task(config: TrainConfig, data: Data) -> Task:
    """The task, with what it takes from the training set, once every target is known to be usable.

    Raises:
        FlashheatError: a target that cannot be learned or scored.
    """
    task: Task
    if config.task == Segmentation.name:
        task = Segmentation.fit(data.train, data.split.n_classes, data.split.train[0].at)
    else:
        task = Pressure.fit(data.train)
    task.check([*data.train, *data.test])
    return task


def _prepare(example: Example, config: TrainConfig, store: OperatorStore) -> Sample:
    try:
        return prepare_example(example, config.input_names, config.k_eig, store)
    except FlashheatError as error:
        if example.mesh.name in str(error):
            raise
        raise type(error)(f"{example.mesh.name}: {error}") from error
