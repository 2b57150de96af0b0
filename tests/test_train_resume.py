"""A run that was killed or interrupted gives, when it goes on, bitwise what an undisturbed one gives."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from flashheat.errors import FlashheatError
from flashheat.train import Interrupted, TrainConfig, open_run, resume, train
from flashheat.train.checkpoint import Progressed, _read, save_checkpoint
from flashheat.train.progress import LogProgress

CONFIG = TrainConfig(
    n_train=5, n_test=2, k_eig=8, width=8, depth=2, epochs=4, batch_size=2, dropout=True, threads=1, learning_rate=3e-3
)
N_STEPS = 12  # of each of the two networks: 3 batches in each of 4 epochs

CHILD = """
import sys, json
from contextlib import contextmanager
import flashheat.train.loop as loop
from flashheat.train import TrainConfig, resume, train

class Talking:
    @contextmanager
    def stage(self, name, total, done=0, unit="steps"):
        yield lambda note="": print(name, flush=True)

folder, seconds, config = sys.argv[1:]
loop.CHECKPOINT_SECONDS = float(seconds)
train(TrainConfig.from_dict(json.loads(config)), folder, Talking()) if config != "null" else resume(folder, Talking())
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def undisturbed(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(replace(CONFIG, store=store), tmp_path_factory.mktemp("runs") / "run", LogProgress())


def assert_same_run(folder: Path, other: Path) -> None:
    """Weights, optimiser and logs bit by bit; of the result all but the seconds."""
    for name in ("checkpoint.safetensors", "pointwise.safetensors"):
        tensors, others = load_file(folder / name), load_file(other / name)
        assert tensors.keys() == others.keys()
        assert any(key.startswith("optimiser.") for key in tensors)
        for key, tensor in tensors.items():
            assert tensor.numpy().tobytes() == others[key].numpy().tobytes(), key
    for name in ("log.csv", "log_pointwise.csv"):
        assert (folder / name).read_text() == (other / name).read_text()
    result, expected = (json.loads((f / "result.json").read_text()) for f in (folder, other))
    assert {**result, "seconds": 0} == {**expected, "seconds": 0}


def kill_at(batch: int, folder: Path, checkpoint_seconds: float, config: dict | None) -> None:
    """Train (or, without config, resume) in another process; SIGKILL it when it says that `batch` batches are done."""
    arguments = [sys.executable, "-c", CHILD, str(folder), str(checkpoint_seconds), json.dumps(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        done = 0
        while done < batch:
            line = child.stdout.readline()
            assert line, f"the training ended after {done} batches, before it was killed at {batch}"
            done += not line.startswith("operators")
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 60.0], ids=["each-batch", "each-epoch"])
def test_killed_at_a_random_batch_and_resumed(
    undisturbed: Path, store: str, tmp_path: Path, checkpoint_seconds: float
) -> None:
    batch = random.SystemRandom().randrange(1, 2 * N_STEPS)
    print("killed at batch", batch)
    config = replace(CONFIG, store=store).to_dict()
    kill_at(batch, tmp_path / "run", checkpoint_seconds, config)
    assert not (tmp_path / "run" / "result.json").exists()
    assert_same_run(resume(tmp_path / "run", LogProgress()), undisturbed)
    assert (tmp_path / "run" / "report.html").exists()


class StopAt:
    """Progress that presses Ctrl-C at one step of one stage."""

    def __init__(self, name: str, step: int) -> None:
        self.name, self.step = name, step

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0, unit: str = "steps") -> Iterator[Callable[[str], None]]:
        count = done

        def advance(note: str = "") -> None:
            nonlocal count
            count += 1
            if (name, count) == (self.name, self.step):
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize("step", [1, 3, 8])
def test_interrupted_in_either_network_and_resumed(
    undisturbed: Path, store: str, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashheat.train.loop.CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Interrupted, match=r"go on with: flashheat train --resume .*run"):
        train(replace(CONFIG, store=store), tmp_path / "run", StopAt("DiffusionNet", step))  # type: ignore[arg-type]
    with pytest.raises(Interrupted):
        resume(tmp_path / "run", StopAt("without diffusion", step))  # type: ignore[arg-type]
    (tmp_path / "run" / "log.csv").unlink()  # as if killed between the checkpoint and the log
    assert_same_run(resume(tmp_path / "run", LogProgress()), undisturbed)


def test_interrupted_while_preparing(store: str, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="start again with the same command"):
        train(replace(CONFIG, store=store), tmp_path / "run", StopAt("operators", 2))  # type: ignore[arg-type]
    assert not (tmp_path / "run" / "config.json").exists()


def test_tensorboard_has_each_epoch_once(
    undisturbed: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the kill comes between the TensorBoard log of an epoch and its checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from flashheat.train import loop

    def save_two_epochs(path: Path, net: nn.Module, optimiser: Optimizer, done: Progressed) -> None:
        if len(done.rows) == 3:
            raise KeyboardInterrupt
        save_checkpoint(path, net, optimiser, done)

    monkeypatch.setattr(loop, "save_checkpoint", save_two_epochs)
    with pytest.raises(Interrupted):
        train(replace(CONFIG, store=store), tmp_path / "run", LogProgress())
    monkeypatch.setattr(loop, "save_checkpoint", save_checkpoint)
    resume(tmp_path / "run", LogProgress())
    for folder in (undisturbed, tmp_path / "run"):
        events = EventAccumulator(str(folder / "tensorboard" / "checkpoint"))
        events.Reload()
        assert [event.step for event in events.Scalars("train_loss")] == [1, 2, 3, 4]


def test_a_finished_run_is_left_as_it_is(undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    assert resume(undisturbed) == undisturbed
    assert before == {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}


def _stopped(store: str, folder: Path) -> Path:
    with pytest.raises(Interrupted):
        train(replace(CONFIG, store=store), folder, StopAt("DiffusionNet", 4))  # type: ignore[arg-type]
    return folder


def test_a_damaged_checkpoint_is_named(store: str, tmp_path: Path) -> None:
    run = _stopped(store, tmp_path / "run")
    (run / "checkpoint.safetensors").write_bytes((run / "checkpoint.safetensors").read_bytes()[:300])
    with pytest.raises(FlashheatError, match=r"checkpoint.safetensors must be readable"):
        resume(run, LogProgress())


def test_no_flipped_byte_of_a_checkpoint_goes_unnoticed(store: str, tmp_path: Path) -> None:
    """Anywhere in the header, and at places spread over the tensors: refused, or the same all the same."""
    run = _stopped(store, tmp_path / "run")
    path = run / "checkpoint.safetensors"
    whole = path.read_bytes()
    n_header = 8 + int.from_bytes(whole[:8], "little")
    expected, progressed = _read(path)
    places = [*range(n_header), *range(n_header, len(whole), 997)]
    for place, bit in zip(places, random.Random(0).choices(range(8), k=len(places)), strict=True):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        try:
            tensors, again = _read(path)
        except FlashheatError:
            continue
        assert place < n_header, place  # a blank that became another blank
        assert again == progressed
        assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FlashheatError, match=r"checkpoint.safetensors must fit its checksum; it is damaged; remove it"):
        resume(run, LogProgress())
    with pytest.raises(FlashheatError, match=r"checkpoint.safetensors must fit its checksum"):
        open_run(run).network()  # what predict and evaluate use


def test_a_checkpoint_of_another_network_is_refused(store: str, tmp_path: Path) -> None:
    run = _stopped(store, tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["config"]["width"] = 9
    (run / "config.json").write_text(json.dumps(record))
    with pytest.raises(FlashheatError, match="must be of this network") as caught:
        resume(run, LogProgress())
    assert "\n" not in str(caught.value)


def test_data_that_changed_are_refused(store: str, tmp_path: Path) -> None:
    run = _stopped(store, tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["config"]["n_test"] = 1
    (run / "config.json").write_text(json.dumps(record))
    with pytest.raises(FlashheatError, match=r"2 then, 1 now; test-body-001 differs"):
        resume(run, LogProgress())


@pytest.mark.parametrize(
    ("text", "message"), [(None, "must hold config.json"), ("{", "as train wrote it"), ("{}", "config")]
)
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(FlashheatError, match=message):
        resume(tmp_path)
