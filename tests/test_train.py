"""Configuration, networks of equal size, and the loop on data where it is known what must come out."""

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flashheat.devices import check_device
from flashheat.errors import FlashheatError
from flashheat.mesh import icosphere
from flashheat.nn import PointwiseNet
from flashheat.tasks import Pressure, Segmentation
from flashheat.train import TrainConfig, demo_config, describe, open_run, train
from flashheat.train.networks import MODEL, POINTWISE, make_network, n_parameters, pointwise_size
from flashheat.train.progress import LogProgress
from tests.test_data_folder import write_off

TINY = TrainConfig(n_train=4, n_test=2, k_eig=8, width=8, depth=1, epochs=2, batch_size=2, threads=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def run(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the embedded data."""
    return train(replace(TINY, store=store), tmp_path_factory.mktemp("runs") / "tiny", LogProgress())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "sing"}, "a task must be one of"),
        ({"dataset": "moon"}, "one of flow, car, rna, folder; got 'moon'"),
        ({"dataset": "rna"}, "rna is for the task segmentation; got pressure"),
        ({"inputs": "colour"}, "inputs must be some of"),
        ({"k_eig": 0}, "k_eig must be at least 1; got 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0; got nan"),
        ({"test_fraction": 1.0}, "between 0 and 1"),
        ({"labels_at": "edges"}, "vertices or faces"),
        ({"stream": (0, 0, 0)}, "three finite numbers"),
        ({"rotate": True}, "rotate must be off for the task pressure"),
        ({"task": "segmentation", "dataset": "rna", "rotate": True}, "inputs hks do not depend on orientation"),
    ],
)
def test_configurations_that_cannot_be_are_refused(change: dict, message: str) -> None:
    with pytest.raises(FlashheatError, match=message):
        TrainConfig(**change)


def test_a_configuration_survives_json_and_knows_its_data() -> None:
    config = TrainConfig(task="segmentation", dataset="folder", data_root="here", inputs="xyz", rotate=True)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert Path(config.data_root or "").is_absolute()
    assert TrainConfig(dataset="car").stream == (0.0, 0.0, 1.0)
    assert TrainConfig(dataset="car").inputs == "xyz+flow"
    with pytest.raises(FlashheatError, match="of this version; it has momentum"):
        TrainConfig.from_dict({"momentum": 1})


@pytest.mark.parametrize("width", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("task", [Pressure(0, 1), Segmentation(260, "vertices", 0)], ids=lambda t: t.name)
def test_the_baseline_has_as_many_parameters(width: int, depth: int, task: Pressure | Segmentation) -> None:
    config = TrainConfig(width=width, depth=depth)
    counts = [n_parameters(make_network(which, config, task)) for which in (MODEL, POINTWISE)]
    limit = 0.02 if width >= 16 else 0.05  # of 600 parameters one column more is 4 %
    assert counts[1] == pytest.approx(counts[0], rel=limit)


def test_the_baseline_keeps_the_depth_where_it_can() -> None:
    assert pointwise_size(demo_config(), Pressure(0, 1))[1] == demo_config().depth
    assert isinstance(make_network(POINTWISE, demo_config(), Pressure(0, 1)), PointwiseNet)


def test_weights_follow_from_the_seed_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (make_network(MODEL, replace(TINY, seed=s), Pressure(0, 1)) for s in (1, 1, 2))
    assert (before == torch.get_rng_state()).all()
    assert all((a == b).all() for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not (first.get_parameter("first_lin.weight") == other.get_parameter("first_lin.weight")).all()


@pytest.mark.parametrize("device", ["meta", "mps", "xpu", "cuda:99", "toaster", ""])
def test_a_device_that_cannot_be_used_is_one_line(device: str, tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match=f"the device must be cpu, cuda or cuda:N; got '{device}': .*; choose cpu"):
        train(replace(TINY, device=device), tmp_path / "run", LogProgress())
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_cuda_device_must_be_one_of_those_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda *_sizes, device: None)
    for device in ("cuda", "cuda:0", "cuda:1"):
        check_device(device)
    with pytest.raises(FlashheatError, match=r"got 'cuda:2': CUDA devices that PyTorch sees here: 2"):
        check_device("cuda:2")


def test_a_run_folder_has_everything(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.json", "checkpoint.safetensors", "checkpoint.json", "log.csv", "pointwise.safetensors",
        "pointwise.json", "log_pointwise.csv", "tensorboard", "result.json", "report.html",
    }  # fmt: skip
    record = json.loads((run / "config.json").read_text())
    assert TrainConfig.from_dict(record["config"]) == open_run(run).config
    assert record["versions"]["torch"] == torch.__version__
    assert record["meshes"]["test"] == ["test-body-000", "test-body-001"]
    assert record["normalisation"].startswith("mean of the vertices to 0")
    rows = list(csv.DictReader((run / "log.csv").open()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "2"), ("2", "4")]
    assert float(rows[1]["learning_rate"]) < float(rows[0]["learning_rate"]) < TINY.learning_rate
    assert list((run / "tensorboard" / "checkpoint").glob("events*"))


def test_a_result_has_its_baselines_and_what_the_basis_allows(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert list(result["metrics"]) == [MODEL, POINTWISE, "predict the mean"]
    assert all(set(scores) == {"relative_l2", "mae", "r2"} for scores in result["metrics"].values())
    last = list(csv.DictReader((run / "log.csv").open()))[-1]
    assert float(last["test_relative_l2"]) == pytest.approx(result["metrics"][MODEL]["relative_l2"], rel=1e-6)
    assert set(result["per_mesh"]) == {"test-body-000", "test-body-001"}
    mean = np.mean([scores["relative_l2"] for scores in result["per_mesh"].values()])
    assert mean == pytest.approx(result["metrics"][MODEL]["relative_l2"])
    assert 0 < result["projection"]["8"] < 1
    assert result["seed"] == 0
    assert "predict the mean" in describe(run)


def test_training_learns_what_pointwise_cannot(store: str, tmp_path: Path) -> None:
    """Ten passes over sixteen bodies: far less than the demo, but more than the mean and more than pointwise."""
    config = replace(demo_config(), store=store, n_train=16, n_test=4, k_eig=16, width=16, depth=2, epochs=10)
    folder = train(config, tmp_path / "run", LogProgress())
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    model, pointwise, mean = (scores["relative_l2"] for scores in metrics.values())
    assert model < 0.7 * pointwise
    assert model < mean / 2


def test_a_folder_with_a_run_is_not_overwritten(run: Path) -> None:
    before = (run / "result.json").read_bytes()
    with pytest.raises(FlashheatError, match="holds a run; resume it or choose another folder"):
        train(TINY, run)
    assert (run / "result.json").read_bytes() == before


def test_a_run_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlashheatError, match=r"cannot make the folder .*file"):
        train(TINY, tmp_path / "file" / "run")


@pytest.mark.parametrize("there", [False, True], ids=["new", "there before"])
@pytest.mark.parametrize("change", [{"device": "meta"}, {"dataset": "car"}, {"width": 10**9}], ids=str)
def test_a_failure_before_training_leaves_no_folder(tmp_path: Path, store: str, change: dict, there: bool) -> None:
    if there:
        (tmp_path / "runs").mkdir()
    with pytest.raises(
        FlashheatError, match=r"device must be|car needs|network must fit into memory; width 1000000000"
    ):
        train(replace(TINY, store=store, **change), tmp_path / "runs" / "mine", LogProgress())
    assert [path.name for path in tmp_path.iterdir()] == (["runs"] if there else [])
    assert not (tmp_path / "runs" / "mine").exists()


def test_a_folder_that_was_there_stays_when_training_fails(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(FlashheatError, match="car needs"):
        train(replace(TINY, dataset="car"), tmp_path / "run", LogProgress())
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_line_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    from flashheat import files

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    files.write_atomically(tmp_path / "log.csv", "before")
    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(FlashheatError, match=r"cannot write .*log.csv: No space left on device"):
        files.write_atomically(tmp_path / "log.csv", "after")
    assert (tmp_path / "log.csv").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_a_loss_that_is_not_finite_stops_with_a_word(store: str, tmp_path: Path) -> None:
    config = replace(TINY, store=store, learning_rate=1e30)
    with pytest.raises(FlashheatError, match=r"the loss of DiffusionNet must stay finite; .* lower the learning rate"):
        train(config, tmp_path / "run", LogProgress())


def test_the_largest_field_that_is_read_can_be_trained_on(store: str, tmp_path: Path) -> None:
    from flashheat.data.example import MAX_FIELD

    (tmp_path / "data").mkdir()
    for name in "ab":
        write_off(tmp_path / "data" / f"{name}.off", icosphere(1).verts, icosphere(1).faces)
        field = np.abs(icosphere(1).verts[:, 2])
        np.save(tmp_path / "data" / f"{name}.npy", field / field.max() * MAX_FIELD)
    config = replace(TINY, dataset="folder", data_root=str(tmp_path / "data"), inputs="xyz", stream=None, store=store)
    metrics = json.loads((train(config, tmp_path / "run", LogProgress()) / "result.json").read_text())["metrics"]
    assert 0 < metrics[MODEL]["relative_l2"] < 1.5


def test_nan_inputs_stop_before_training_and_name_the_input(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashheat.data import inputs

    monkeypatch.setattr(inputs, "_flow", lambda mesh, _o, _s: torch.full((mesh.n_verts, 2), torch.nan))
    with pytest.raises(FlashheatError, match="input flow of train-body-000 must be finite"):
        train(replace(TINY, store=store), tmp_path / "run", LogProgress())
    assert not (tmp_path / "run" / "config.json").exists()


def test_progress_lines_tell_rate_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flashheat"), LogProgress().stage("knitting", 4, done=2) as advance:
        advance("red")
        advance("blue")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("knitting: 4/4 steps, ")
    assert caplog.messages[0].endswith(" steps/s, 0:00 left, blue")


def test_without_tensorboard_a_run_says_so_and_goes_on(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = train(replace(TINY, store=store, epochs=1), tmp_path / "run", LogProgress())
    assert any("tensorboard is not installed" in message for message in caplog.messages)
    assert (folder / "result.json").exists()
