"""The one training loop: batches, loss, Adam with a falling rate, and a state that a kill at any batch cannot harm.

It is separate because it knows neither data sets nor run folders: samples and a task go in, a trained net comes out.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flashheat.data import Batch, Sample, collate
from flashheat.data.sample import turned
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.nn import project_times_
from flashheat.tasks import Task
from flashheat.train.checkpoint import Progressed, load_checkpoint, save_checkpoint
from flashheat.train.config import TrainConfig
from flashheat.train.progress import Progress

logger = logging.getLogger("flashheat")

CHECKPOINT_SECONDS = 20.0  # at most so much work is lost within an epoch


class Writer(Protocol):
    """Where the rows of the log also go, as TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """One number of one epoch."""


@dataclass(frozen=True)
class Fit:
    """One network's training: everything that does not change while it runs.

    Args:
        name: for progress and messages.
        net: what is trained, in place.
        task, config: what is learned, and how.
        train, test: samples; `test` is scored after each epoch.
        checkpoint: file of the state.
        log: CSV file with one row an epoch.
    """

    name: str
    net: nn.Module
    task: Task
    config: TrainConfig
    train: Sequence[Sample]
    test: Sequence[Sample]
    checkpoint: Path
    log: Path

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass; the last may be smaller."""
        return math.ceil(len(self.train) / self.config.batch_size)

    @property
    def n_steps(self) -> int:
        """Optimiser steps in all."""
        return self.steps_per_epoch * self.config.epochs

    def batch(self, step: int) -> Batch:
        """The batch of a step, which follows from the seed and the step alone."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train))
        size = self.config.batch_size
        samples = [self.train[i] for i in order[index * size : (index + 1) * size]]
        if self.config.rotate:
            rng = np.random.default_rng([self.config.seed, epoch, index])
            samples = [turned(sample, self.config.input_names, rng) for sample in samples]
        return collate(samples).to(self.config.device)

    def learning_rate(self, step: int) -> float:
        """Half a cosine from the first step's rate down to 0."""
        return self.config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.n_steps))


def fit(job: Fit, progress: Progress, writer: Writer | None = None) -> Progressed:
    """Train from the checkpoint, or from the start where there is none, to the end.

    A training that was stopped and goes on gives, on one thread, bitwise what an undisturbed one gives: the order of
    the data, rotations and dropout of each step follow from the seed and the number of the step.

    Raises:
        FlashheatError: the loss is no longer finite, or the checkpoint cannot be read or written.
    """
    optimiser = torch.optim.Adam(job.net.parameters(), lr=job.config.learning_rate)
    done = load_checkpoint(job.checkpoint, job.net, optimiser)
    if done.rows:
        _write_log(job.log, done.rows)  # the kill may have come between checkpoint and log
    saved = start = time.monotonic()
    with (
        torch.random.fork_rng(devices=_random_devices(job.config.device)),
        progress.stage(job.name, job.n_steps, done.step) as advance,
    ):
        while done.step < job.n_steps:
            loss = _step(job, optimiser, done.step)
            done.step += 1
            done.loss_sum += loss
            ends_epoch = done.step % job.steps_per_epoch == 0
            if ends_epoch:
                _end_epoch(job, done, writer)
            if ends_epoch or time.monotonic() - saved >= CHECKPOINT_SECONDS:
                saved = time.monotonic()
                done.seconds, start = done.seconds + saved - start, saved
                save_checkpoint(job.checkpoint, job.net, optimiser, done)
            if ends_epoch:
                _write_log(job.log, done.rows)
            advance(f"loss {loss:.4f}")
    return done


def answers(net: nn.Module, task: Task, samples: Sequence[Sample], device: str) -> list[Tensor]:
    """What a network answers on each sample, on the CPU; without dropout, one mesh at a time."""
    net.eval()
    with torch.no_grad():
        return [task.answer(net(s.x.to(device), s.operators.to(device))).cpu() for s in samples]


def _step(job: Fit, optimiser: torch.optim.Optimizer, step: int) -> float:
    batch = job.batch(step)
    torch.manual_seed(_seed_of(job.config.seed, step))
    job.net.train()
    for group in optimiser.param_groups:
        group["lr"] = job.learning_rate(step)
    optimiser.zero_grad()
    loss = job.task.loss(job.net(batch.x, batch.operators), batch)
    value = loss.item()
    if not math.isfinite(value):
        raise FlashheatError(
            f"the loss of {job.name} must stay finite; it is {value} in step {step + 1} of {job.n_steps}; "
            f"lower the learning rate ({job.config.learning_rate:g})"
        )
    loss.backward()
    optimiser.step()
    project_times_(job.net)
    return value


def _end_epoch(job: Fit, done: Progressed, writer: Writer | None) -> None:
    scores = job.task.score(answers(job.net, job.task, job.test, job.config.device), job.test)
    epoch = done.step // job.steps_per_epoch
    row = {"epoch": float(epoch), "step": float(done.step), "learning_rate": job.learning_rate(done.step - 1)}
    row |= {"train_loss": done.loss_sum / job.steps_per_epoch, **{f"test_{name}": x for name, x in scores.items()}}
    done.rows.append(row)
    done.loss_sum = 0.0
    if writer is not None:
        for name, value in row.items():
            writer.add_scalar(name, value, epoch)


def _seed_of(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _random_devices(device: str) -> list[torch.device]:
    return [] if torch.device(device).type == "cpu" else [torch.device(device)]


def _write_log(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.9g}" for name, value in row.items()} for row in rows)
    write_atomically(path, text.getvalue())
