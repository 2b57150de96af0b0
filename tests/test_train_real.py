"""Real data: RNA as it comes, cars, and predictions on meshes from elsewhere."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashheat.mesh import Mesh
from flashheat.train import Interrupted, TrainConfig, predict, resume, train
from flashheat.train.progress import LogProgress
from tests.test_train_resume import StopAt, assert_same_run

RNA = {"npz_train": ("3JBN_AB", "3G4S_9"), "npz_test": ("4V9A_DB",)}  # with 2,561, 0 and 840 isolated vertices


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def rna_root(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two RNA meshes to train on and one to test on."""
    root = tmp_path_factory.mktemp("rna")
    for part, names in RNA.items():
        (root / part).mkdir()
        for name in names:
            (root / part / f"{name}.npz").symlink_to((shared_data / "rna" / part / f"{name}.npz").absolute())
    return root


@pytest.fixture(scope="module")
def car_run(shared_data: Path, store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cars to train on, the third to report on."""
    config = TrainConfig(
        dataset="car", data_root=str(shared_data / "car"), k_eig=32, width=16, depth=2, epochs=25,
        learning_rate=5e-3, store=store, threads=1,
    )  # fmt: skip
    return train(config, tmp_path_factory.mktemp("runs") / "car", LogProgress())


def test_rna_trains_and_resumes_to_the_same_numbers(rna_root: Path, store: str, tmp_path: Path) -> None:
    config = TrainConfig(
        "segmentation", "rna", str(rna_root), inputs="xyz+hks", rotate=True, dropout=True, k_eig=16, width=8, depth=1,
        epochs=2, learning_rate=1e-2, store=store, threads=1,
    )  # fmt: skip
    folder = train(config, tmp_path / "run", LogProgress())
    rows = list(csv.DictReader((folder / "log.csv").open()))
    assert float(rows[1]["train_loss"]) < float(rows[0]["train_loss"])
    result = json.loads((folder / "result.json").read_text())
    assert list(result["metrics"]["DiffusionNet"]) == ["accuracy", "mean_iou"]
    assert "predict the most frequent class" in result["metrics"]
    with pytest.raises(Interrupted):
        train(config, tmp_path / "other", StopAt("DiffusionNet", 3))  # type: ignore[arg-type]
    assert_same_run(resume(tmp_path / "other", LogProgress()), folder)
    with pytest.raises(AssertionError):
        assert_same_run(train(replace(config, seed=1), tmp_path / "third", LogProgress()), folder)


def test_cars_train_and_report_on_the_third(car_run: Path) -> None:
    result = json.loads((car_run / "result.json").read_text())
    assert list(result["per_mesh"]) == ["car_2"]
    scores = result["metrics"]
    assert scores["DiffusionNet"]["relative_l2"] < 0.8 * scores["predict the mean"]["relative_l2"]
    assert 0 < result["projection"]["32"] < 1
    assert "normalised" in (car_run / "report.html").read_text()


@pytest.mark.parametrize("name", ["meshes/clean/horse.ply", "meshes/broken_public/cylinder.stl"])
def test_a_field_on_the_vertices_of_a_mesh_from_elsewhere(
    car_run: Path, shared_data: Path, tmp_path: Path, name: str
) -> None:
    """The number of values is that of the file's vertices, before any welding."""
    import trimesh

    path = shared_data / name
    predict(car_run, path, tmp_path / "out.npy", (0.0, 0.0, 1.0))
    values = np.load(tmp_path / "out.npy")
    raw = trimesh.load(path, process=False)
    assert values.shape == (len(raw.vertices),)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(raw.vertices, Mesh.read(path).scatter(Mesh.read(path).verts), rtol=1e-6, atol=1e-12)
    _, which = np.unique(raw.vertices, axis=0, return_inverse=True)
    if path.suffix == ".stl":  # corners at one place have one answer
        lowest, highest = (np.full(which.max() + 1, fill) for fill in (np.inf, -np.inf))
        np.minimum.at(lowest, which, values)
        np.maximum.at(highest, which, values)
        assert (lowest == highest).all()
