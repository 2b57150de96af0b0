"""A trained run answers on the input's own vertices or faces, whatever the input is, or says why it does not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from flashheat.data.arrays import read_array
from flashheat.data.inputs import unit_stream
from flashheat.errors import FlashheatError, MeshError
from flashheat.mesh import Mesh, icosphere, torus
from flashheat.train import TrainConfig, evaluate, open_run, predict, predict_mesh, train
from flashheat.train.checkpoint import checksum
from flashheat.train.progress import LogProgress
from tests.test_data_folder import write_off, write_stl

STREAM = (1.0, 0.0, 0.0)
CUBE = np.array([[x, y, z] for x in (0.0, 1) for y in (0.0, 1) for z in (0.0, 1)])
QUADS = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def flow(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the embedded data: a field at vertices, with a stream."""
    config = TrainConfig(n_train=3, n_test=2, k_eig=8, width=8, depth=1, epochs=2, threads=1, store=store)
    return train(config, tmp_path_factory.mktemp("runs") / "flow", LogProgress())


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of balls and rings whose faces are labelled by their side of a plane."""
    folder = tmp_path_factory.mktemp("halves")
    for i, mesh in enumerate((icosphere(1), icosphere(2), torus(12, 8), torus(16, 8))):
        write_off(folder / f"body{i}.off", mesh.verts, mesh.faces)
        np.save(folder / f"body{i}.npy", (mesh.verts[mesh.faces].mean(axis=1)[:, 2] > 0).astype(int))
    return folder


@pytest.fixture(scope="module")
def faces_run(halves: Path, store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that answers with a class at each face."""
    config = TrainConfig(
        "segmentation", "folder", str(halves), inputs="xyz", k_eig=8, width=8, depth=1, epochs=30,
        learning_rate=1e-2, threads=1, store=store,
    )  # fmt: skip
    return train(config, tmp_path_factory.mktemp("runs") / "faces", LogProgress())


def test_evaluation_repeats_what_training_found(flow: Path, tmp_path: Path) -> None:
    result = evaluate(flow, out=tmp_path / "scores.json", progress=LogProgress())
    trained = json.loads((flow / "result.json").read_text())
    assert result["metrics"] == trained["metrics"]["DiffusionNet"]
    assert result["per_mesh"] == trained["per_mesh"]
    assert json.loads((tmp_path / "scores.json").read_text()) == result


def test_evaluation_on_a_folder_scores_every_mesh_of_it(faces_run: Path, halves: Path) -> None:
    result = evaluate(faces_run, meshes=halves, progress=LogProgress())
    assert set(result["per_mesh"]) == {"body0", "body1", "body2", "body3"}
    assert result["metrics"]["accuracy"] > 0.9


def test_evaluation_refuses_labels_the_run_does_not_know(faces_run: Path, tmp_path: Path) -> None:
    write_off(tmp_path / "odd.off", icosphere(1).verts, icosphere(1).faces)
    np.save(tmp_path / "odd.npy", np.full(80, 2))
    with pytest.raises(FlashheatError, match=r"must be below 2, .* odd has 2"):
        evaluate(faces_run, meshes=tmp_path, progress=LogProgress())
    np.save(tmp_path / "odd.npy", np.zeros(42, int))
    with pytest.raises(FlashheatError, match="has 42 rows"):
        evaluate(faces_run, meshes=tmp_path, progress=LogProgress())


def test_a_run_moves_with_its_data(halves: Path, faces_run: Path, store: str, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(faces_run, tmp_path / "run"))
    record = json.loads((moved / "config.json").read_text())
    record["config"]["data_root"] = "/nowhere"
    (moved / "config.json").write_text(json.dumps(record))
    with pytest.raises(FlashheatError, match="got /nowhere"):
        evaluate(moved, progress=LogProgress())
    result = evaluate(moved, data_root=halves, store=store, progress=LogProgress())
    assert result["metrics"] == json.loads((moved / "result.json").read_text())["metrics"]["DiffusionNet"]


@pytest.mark.parametrize("ending", [".npy", ".npz", ".txt"])
def test_a_field_is_written_on_the_corners_of_an_stl(flow: Path, tmp_path: Path, ending: str) -> None:
    ball = icosphere(2)
    path = write_stl(tmp_path / "ball.stl", ball)
    assert predict(flow, path, tmp_path / f"out{ending}", STREAM) == tmp_path / f"out{ending}"
    values = read_array(tmp_path / f"out{ending}")
    assert values.shape == (3 * ball.n_faces,)
    whole = predict_mesh(open_run(flow), Mesh.read(write_off(tmp_path / "ball.off", ball.verts, ball.faces)), STREAM)
    assert whole.shape == (162,)
    np.testing.assert_allclose(values, whole[ball.faces.reshape(-1)], atol=2e-3)  # an STL has single precision


def test_the_answer_turns_with_body_and_stream_and_ignores_size(flow: Path) -> None:
    run, mesh = open_run(flow), torus(20, 12)
    turn = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])
    stream = np.array([0.6, 0.0, 0.8])
    expected = predict_mesh(run, mesh, stream)
    again = predict_mesh(run, Mesh(mesh.verts @ turn.T * 1e3 + 5, mesh.faces), 7 * turn @ stream)
    np.testing.assert_allclose(again, expected, atol=2e-4)
    assert np.abs(predict_mesh(run, mesh, -stream) - expected).max() > 1e-2


def test_the_stream_is_asked_for_or_refused(flow: Path, faces_run: Path, tmp_path: Path) -> None:
    path = write_off(tmp_path / "ball.off", icosphere(1).verts, icosphere(1).faces)
    with pytest.raises(FlashheatError, match="the inputs flow needs a stream direction"):
        predict(flow, path, tmp_path / "out.npy")
    with pytest.raises(FlashheatError, match="the inputs xyz takes no stream"):
        predict(faces_run, path, tmp_path / "out.npy", STREAM)
    for stream in ((0.0, 0.0, 0.0), (1.0, float("nan"), 0.0), (float("inf"), 0.0, 0.0)):
        with pytest.raises(FlashheatError, match="three finite numbers"):  # before the mesh is even looked for
            predict(flow, tmp_path / "absent.off", tmp_path / "out.npy", stream)
    with pytest.raises(FlashheatError, match=r"absent\.off"):  # a missing file is told before a missing stream
        predict(flow, tmp_path / "absent.off", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_a_stream_of_any_length_is_a_direction(size: float) -> None:
    np.testing.assert_allclose(unit_stream(np.array([3.0, 0.0, -4.0]) * size), [0.6, 0.0, -0.8])


def test_a_device_is_refused_before_anything_is_read(flow: Path, tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match="got 'meta': meta is not supported"):
        predict(flow, tmp_path / "absent.off", tmp_path / "out.npy", STREAM, device="meta")
    with pytest.raises(FlashheatError, match="got 'meta': meta is not supported"):
        evaluate(flow, meshes=tmp_path / "absent", device="meta", progress=LogProgress())


def test_labels_are_written_at_the_faces_of_the_file(faces_run: Path, tmp_path: Path) -> None:
    path = write_off(tmp_path / "cube.off", CUBE, QUADS)
    predict(faces_run, path, tmp_path / "out.npy")
    labels = np.load(tmp_path / "out.npy")
    assert labels.shape == (6,)
    assert labels.dtype.kind == "i"
    heights = CUBE[np.array(QUADS)].mean(axis=1)[:, 2]
    assert (labels[heights == 1] == 1).all()
    assert (labels[heights == 0] == 0).all()


def test_isolated_vertices_and_small_components_get_finite_answers(flow: Path, tmp_path: Path) -> None:
    ball = icosphere(2)
    verts = np.concatenate([[[3.0, 0, 0]], ball.verts, ball.verts[:12] * 0.01 + 2])
    faces = np.concatenate([ball.faces + 1, icosphere(0).faces + 163])
    values = predict_mesh(open_run(flow), Mesh(verts, faces), np.array(STREAM))
    assert values.shape == (175,)
    assert np.isfinite(values).all()


def test_fewer_vertices_than_eigenvectors_are_enough(flow: Path) -> None:
    tetrahedron = Mesh(np.eye(4)[:, :3], [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]])
    assert np.isfinite(predict_mesh(open_run(flow), tetrahedron, np.array(STREAM))).all()


def test_a_point_cloud_is_answered_where_it_can_be(flow: Path, faces_run: Path) -> None:
    cloud = Mesh(icosphere(3).verts, [], name="cloud")
    with pytest.raises(FlashheatError, match="cloud is a point cloud"):
        predict_mesh(open_run(flow), cloud, np.array(STREAM))
    with pytest.raises(FlashheatError, match="answers at faces; cloud has none"):
        predict_mesh(open_run(faces_run), cloud)


def test_a_mesh_without_area_is_refused(flow: Path) -> None:
    line = Mesh([[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]])
    with pytest.raises(MeshError, match="face with area"):
        predict_mesh(open_run(flow), line, np.array(STREAM))


def test_an_answer_that_is_not_finite_is_never_written(flow: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    broken = Path(shutil.copytree(flow, tmp_path / "run")) / "checkpoint.safetensors"
    with safe_open(broken, framework="pt") as file:
        metadata = {"progress": file.metadata()["progress"]}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    tensors["net.last_lin.bias"] = torch.full((1,), torch.nan)
    save_file(tensors, broken, metadata | {"checksum": checksum(tensors, metadata)})
    path = write_off(tmp_path / "ball.off", icosphere(1).verts, icosphere(1).faces)
    with pytest.raises(FlashheatError, match="the answer on ball must be finite; 42 of 42"):
        predict(tmp_path / "run", path, tmp_path / "out.npy", STREAM)
    assert not (tmp_path / "out.npy").exists()


def test_a_run_without_weights_or_output_folder_is_one_line(flow: Path, tmp_path: Path) -> None:
    path = write_off(tmp_path / "ball.off", icosphere(1).verts, icosphere(1).faces)
    with pytest.raises(FlashheatError, match="must end in"):
        predict(flow, path, tmp_path / "out.vtk", STREAM)
    with pytest.raises(FlashheatError, match="cannot read"):
        predict(flow, tmp_path / "absent.off", tmp_path / "out.npy", STREAM)
    (tmp_path / "bare").mkdir()
    shutil.copy(flow / "config.json", tmp_path / "bare")
    with pytest.raises(FlashheatError, match="must have a checkpoint"):
        predict(tmp_path / "bare", path, tmp_path / "out.npy", STREAM)


def test_a_run_that_is_not_finished_answers_with_a_warning(
    flow: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Path(shutil.copytree(flow, tmp_path / "run"))
    (run / "result.json").unlink()
    assert np.isfinite(predict_mesh(open_run(run), icosphere(2), np.array(STREAM))).all()
    assert any("is not finished; its checkpoint after 6 steps" in message for message in caplog.messages)
