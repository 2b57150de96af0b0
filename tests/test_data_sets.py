"""Data sets of known layout, and the inputs and batches made of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flashheat.data import Example, collate, load_car, load_rna, prepare_example
from flashheat.data.inputs import columns_of, make_inputs, n_channels, outward_normals, parse_inputs
from flashheat.data.sample import prepare_mesh, turned
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, grid, icosphere, torus
from flashheat.operators import OperatorStore, compute_operators


@pytest.fixture
def store(tmp_path: Path) -> OperatorStore:
    return OperatorStore(tmp_path / "store")


def _write_rna(folder: Path, labels: np.ndarray, **changes: np.ndarray) -> None:
    mesh = icosphere(1)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "a.npz", **{"vertices": mesh.verts, "faces": mesh.faces, "labels": labels, **changes})


def test_rna_is_read_as_it_comes(shared_data: Path) -> None:
    split = load_rna(shared_data / "rna")
    assert (len(split.train), len(split.test), split.n_classes) == (40, 12, 260)
    example = split.train[0]
    with np.load(shared_data / "rna" / "npz_train" / f"{example.mesh.name}.npz") as file:
        assert (example.target == file["labels"] + 1).all()
        assert example.mesh.n_verts == len(file["vertices"])
    unused = [np.setdiff1d(np.arange(e.mesh.n_verts), e.mesh.faces) for e in split.train + split.test]
    assert sum(len(u) > 0 for u in unused) == 35
    assert max(map(len, unused)) == 2561


def test_rna_says_where_the_data_come_from(tmp_path: Path) -> None:
    for root in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(FlashheatError, match="RNA-Surface-Segmentation-Dataset"):
            load_rna(root)
    (tmp_path / "npz_train").mkdir()
    with pytest.raises(FlashheatError, match="it holds none"):
        load_rna(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(41, int), "got 41 for 42 vertices"),
        (np.full(42, 259), "at most 258; got 259"),
        (np.full(42, -2), "row 0 .* is -1"),
        (np.zeros((42, 2), int), r"\[42, 2\]"),
    ],
)
def test_rna_refuses_other_labels(tmp_path: Path, labels: np.ndarray, message: str) -> None:
    for part in ("npz_train", "npz_test"):
        _write_rna(tmp_path / part, labels)
    with pytest.raises(FlashheatError, match=message) as caught:
        load_rna(tmp_path)
    assert "a.npz" in str(caught.value)


def test_rna_refuses_files_that_are_not_its_own(tmp_path: Path) -> None:
    for part in ("npz_train", "npz_test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.npz").write_bytes(b"PK\x03\x04 not a zip at all")
    with pytest.raises(FlashheatError, match=r"cannot read .*a.npz"):
        load_rna(tmp_path)
    np.savez(tmp_path / "npz_train" / "a.npz", vertices=np.zeros((3, 3)))
    with pytest.raises(FlashheatError, match="faces, labels absent"):
        load_rna(tmp_path)


def test_cars_are_split_and_their_stream_meets_the_nose(shared_data: Path) -> None:
    split = load_car(shared_data / "car", np.array([0.0, 0.0, 1.0]))
    assert [e.mesh.name for e in split.train] == ["car_0", "car_1"]
    assert [e.mesh.name for e in split.test] == ["car_2"]
    for car in split.train + split.test:
        length = np.ptp(car.mesh.verts, axis=0)
        assert length.argmax() == 2
        assert 4 < length[2] < 5  # metres: the physical vertices, not the unit cube's
        along = car.mesh.verts @ car.stream
        assert along[car.target.argmax()] < along.min() + 0.1 * length[2]  # stagnation at the nose


def test_car_refuses_an_absent_folder_and_wrong_counts(tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match="research terms"):
        load_car(tmp_path / "no", None)
    mesh = icosphere(1)
    for i, n_values in enumerate((42, 40)):
        values = np.arange(float(n_values))
        np.savez(tmp_path / f"car_{i}.npz", vertices_physical=mesh.verts, faces=mesh.faces, pressure=values)
    with pytest.raises(FlashheatError, match=r"car_1.npz .* got 40 for 42 vertices"):
        load_car(tmp_path, None)


def test_inputs_have_their_columns() -> None:
    names = parse_inputs("hks+xyz+flow")
    assert n_channels(names) == 21
    assert columns_of("xyz", names) == slice(16, 19)
    assert columns_of("flow", ("xyz",)) is None
    for wrong in ("", "xyz+", "xyz+xyz", "colour"):
        with pytest.raises(FlashheatError, match="inputs must be some of"):
            parse_inputs(wrong)


def test_flow_inputs_on_a_sphere_are_the_cosine_and_turn_with_the_body() -> None:
    mesh = icosphere(2)
    operators = compute_operators(mesh, k_eig=4)
    stream = np.array([3.0, -4.0, 0.0])
    x = make_inputs(("flow",), mesh, operators, stream)
    cosine = torch.from_numpy(mesh.verts @ stream / 5).float()
    torch.testing.assert_close(x[:, 1], cosine, atol=1e-6, rtol=0)
    torch.testing.assert_close(x[:, 0], cosine, atol=2e-2, rtol=0)
    turn = np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    turned_mesh = Mesh(mesh.verts @ turn.T, mesh.faces)
    again = make_inputs(("flow",), turned_mesh, compute_operators(turned_mesh, k_eig=4), turn @ stream)
    torch.testing.assert_close(again, x, atol=1e-5, rtol=0)


def test_normals_point_outward_whatever_way_the_faces_turn() -> None:
    mesh = torus(24, 12)
    flipped = Mesh(mesh.verts, mesh.faces[:, ::-1])
    normals, again = (outward_normals(m, compute_operators(m, k_eig=4)) for m in (mesh, flipped))
    torch.testing.assert_close(again, normals)
    sheet = grid(5, 5).normalise()[0]
    upside_down = Mesh(sheet.verts, sheet.faces[:, ::-1])
    for side, m in ((1, sheet), (-1, upside_down)):
        assert (outward_normals(m, compute_operators(m, k_eig=4))[:, 2] * side > 0.9).all()


def test_flow_inputs_are_refused_where_they_mean_nothing(store: OperatorStore) -> None:
    with pytest.raises(FlashheatError, match="need a stream direction for icosphere2"):
        prepare_mesh(icosphere(2), ("flow",), 8, store, None)
    for stream in ([0.0, 0, 0], [1.0, np.nan, 0], [1.0, 0]):
        with pytest.raises(FlashheatError, match="three finite numbers"):
            prepare_mesh(icosphere(2), ("flow",), 8, store, np.array(stream))
    with pytest.raises(FlashheatError, match="cloud is a point cloud"):
        prepare_mesh(Mesh(icosphere(2).verts, [], name="cloud"), ("flow",), 8, store, np.array([1.0, 0, 0]))


def test_nan_inputs_are_refused_by_name() -> None:
    mesh = icosphere(1)
    operators = compute_operators(mesh, k_eig=4)
    operators.evecs[5] = torch.nan
    with pytest.raises(FlashheatError, match=r"input hks of icosphere1 must be finite; 1 of 42 rows .* row 5"):
        make_inputs(("xyz", "hks"), mesh, operators, None)


def test_isolated_vertices_have_finite_inputs(store: OperatorStore) -> None:
    ball = icosphere(2)
    mesh = Mesh(np.concatenate([ball.verts, [[0.1, 0.2, 0.3]]]), ball.faces)
    _, x = prepare_mesh(mesh, ("xyz", "hks", "flow"), 8, store, np.array([1.0, 0, 0]))
    assert x.isfinite().all()
    assert (x[-1, 3:20] == 0).all()  # no heat kernel, no normal


def test_a_batch_keeps_each_mesh_apart(store: OperatorStore) -> None:
    meshes = [icosphere(1), torus(10, 6), icosphere(2)]
    samples = [prepare_example(Example(m, np.arange(m.n_verts) % 3, "vertices"), ("xyz",), 8, store) for m in meshes]
    batch = collate(samples)
    assert batch.sizes == (42, 60, 162)
    assert batch.x.shape == (264, 3)
    assert batch.target.dtype == torch.int64
    assert batch.operators.offsets is not None
    assert batch.operators.offsets.tolist() == [0, 42, 102, 264]
    torch.testing.assert_close(batch.operators.evals[1], samples[1].operators.evals)
    assert "_gradX_evecs" in batch.operators.__dict__  # carried along, not made again for each batch
    assert collate(samples[:1]).operators is samples[0].operators


def test_turning_changes_positions_only_and_keeps_lengths(store: OperatorStore) -> None:
    mesh = torus(10, 6)
    sample = prepare_example(Example(mesh, np.zeros(60)), ("hks", "xyz"), 8, store)
    other = turned(sample, ("hks", "xyz"), np.random.default_rng(0))
    assert (other.x[:, :16] == sample.x[:, :16]).all()
    assert not torch.allclose(other.x[:, 16:], sample.x[:, 16:], atol=0.1)
    before, after = (s.x[:, 16:] @ s.x[:, 16:].T for s in (sample, other))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    assert turned(sample, ("hks",), np.random.default_rng(0)) is sample
