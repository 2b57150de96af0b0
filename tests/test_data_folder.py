"""A user's folder: what fits is read onto the right vertices, what does not is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flashheat.data.arrays import read_array, write_values
from flashheat.data.example import checked_labels
from flashheat.data.folder import load_folder, on_mesh
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, icosphere


def write_off(path: Path, verts: np.ndarray, faces: list[list[int]] | np.ndarray) -> Path:
    lines = ["OFF", f"{len(verts)} {len(faces)} 0", *(" ".join(f"{x:.17g}" for x in v) for v in verts)]
    lines += [" ".join(map(str, [len(face), *face])) for face in faces]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_stl(path: Path, mesh: Mesh) -> Path:
    """A binary STL: three corners of its own for every triangle."""
    rows = np.zeros(mesh.n_faces, [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("rest", "<u2")])
    rows["corners"] = mesh.verts[mesh.faces]
    path.write_bytes(b"\0" * 80 + np.uint32(mesh.n_faces).tobytes() + rows.tobytes())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five balls with the height of each vertex beside them, in three formats."""
    for i in range(5):
        ball = icosphere(1)
        write_off(tmp_path / f"ball{i}.off", ball.verts * (1 + i), ball.faces)
        heights = ball.verts[:, 2] * (1 + i)
        if i % 3 == 0:
            np.save(tmp_path / f"ball{i}.npy", heights)
        elif i % 3 == 1:
            np.savez(tmp_path / f"ball{i}.npz", height=heights[:, None])
        else:
            np.savetxt(tmp_path / f"ball{i}.txt", heights)
    return tmp_path


def test_every_format_is_read_and_the_split_follows_from_the_seed(folder: Path) -> None:
    split = load_folder(folder, "field", 0.4, seed=3)
    assert (len(split.train), len(split.test)) == (3, 2)
    for example in split.train + split.test:
        np.testing.assert_allclose(example.target, example.mesh.verts[:, 2], atol=1e-12)
    names = sorted(e.mesh.name for e in split.train + split.test)
    assert names == [f"ball{i}" for i in range(5)]

    def held_out(seed: int) -> list[str]:
        return [e.mesh.name for e in load_folder(folder, "field", 0.4, seed).test]

    assert held_out(3) == [e.mesh.name for e in split.test]
    assert len({tuple(held_out(seed)) for seed in range(8)}) > 1


def test_all_of_a_folder_can_be_for_testing(folder: Path) -> None:
    split = load_folder(folder, "field", 0.0, seed=0)
    assert (len(split.train), len(split.test)) == (0, 5)


def test_rows_of_an_stl_are_its_corners(tmp_path: Path) -> None:
    ball = icosphere(1)
    for name in "ab":
        write_stl(tmp_path / f"{name}.stl", ball)
        np.save(tmp_path / f"{name}.npy", ball.verts[ball.faces.reshape(-1), 2])
    example = load_folder(tmp_path, "field", 0.5, seed=0).train[0]
    assert example.mesh.n_verts == 42
    np.testing.assert_allclose(example.target, example.mesh.verts[:, 2], atol=1e-6)


def test_labels_at_faces_follow_polygons_to_their_triangles(tmp_path: Path) -> None:
    square = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 2, 0], [2, 0, 1]])
    for name in "ab":
        write_off(tmp_path / f"{name}.off", square, [[0, 1, 2, 3], [3, 2, 4]])
        np.savetxt(tmp_path / f"{name}.txt", [4, 1])
    split = load_folder(tmp_path, "classes", 0.5, seed=0)
    assert split.train[0].at == "faces"
    assert split.train[0].target.tolist() == [4, 4, 1]
    assert split.n_classes == 5


def test_welded_vertices_get_the_mean_or_the_majority() -> None:
    mesh = Mesh(np.eye(3), [[0, 1, 2]], vertex_map=[2, 0, 0, 1, 0])
    assert on_mesh(np.array([5.0, 1, 2, 7, 6]), mesh, "vertices", "field").tolist() == [3, 7, 5]
    assert on_mesh(np.array([5, 1, 2, 7, 2]), mesh, "vertices", "classes").tolist() == [2, 7, 5]
    assert on_mesh(np.array([5, 4, 2, 7, 2]), Mesh(np.eye(3), [[0, 1, 2]]), "vertices", "classes").tolist()[0] == 5


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "ball0.npy").unlink(), r"ball0.off must have one array beside it \(ball0.npy"),
        (lambda f: np.savetxt(f / "ball0.txt", [1]), "there are ball0.npy, ball0.txt"),
        (lambda f: np.save(f / "ball0.npy", np.zeros(7)), "ball0.npy has 7 rows, ball0.off 42 vertices and 80 faces"),
        (lambda f: np.save(f / "ball0.npy", np.full(42, np.nan)), "ball0.npy must hold finite .* 42 of 42"),
        (
            lambda f: np.save(f / "ball0.npy", np.linspace(0, -1e300, 42)),
            r"ball0.npy must hold values of at most 1e\+18 .* float32; row 41 .* is -1e\+300; scale the field",
        ),
        (lambda f: np.save(f / "ball0.npy", np.full(42, 2e18)), "scale the field"),
        (lambda f: np.save(f / "ball0.npy", np.zeros((42, 2))), r"ball0.npy must hold one number a row.*\[42, 2\]"),
        (lambda f: np.save(f / "ball0.npy", np.array(["x"] * 42)), "ball0.npy must hold one number a row"),
        (
            lambda f: np.save(f / "ball0.npy", np.array([None] * 42), allow_pickle=True),
            "cannot read the array .*ball0.npy",
        ),
        (lambda f: (f / "ball0.npy").write_bytes(b""), "cannot read the array .*ball0.npy"),
        (lambda f: (f / "ball2.txt").write_text("1\ntwo\n"), "cannot read the array .*ball2.txt"),
        (lambda f: np.savez(f / "ball1.npz", a=np.zeros(42), b=np.zeros(42)), "must hold one array; it holds a, b"),
        (lambda f: np.save(f / "ball0.npy", np.zeros(80)), "one row a vertex; ball0.npy has one a face"),
        (lambda f: (f / "ball0.off").write_text("OFF\n"), "cannot read .*ball0.off"),
        (lambda f: write_off(f / "ball0.obj", np.eye(3), []), "ball0 is there twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder: Path, change: Change, message: str) -> None:
    change(folder)
    with pytest.raises(FlashheatError, match=message) as caught:
        load_folder(folder, "field", 0.2, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "got"), [(-1.0, "-1"), (0.5, "0.5")])
def test_classes_must_be_whole_numbers_from_zero(folder: Path, value: float, got: str) -> None:
    for path in folder.glob("ball*.off"):
        for ending in (".npy", ".npz", ".txt"):
            path.with_suffix(ending).unlink(missing_ok=True)
        labels = np.zeros(42)
        labels[7] = value
        np.save(path.with_suffix(".npy"), labels)
    with pytest.raises(FlashheatError, match=rf"row 7 \(counted from 0\) is {got}"):
        load_folder(folder, "classes", 0.2, seed=0)


@pytest.mark.parametrize("label", [10**4, 10**12, 2**62])
def test_a_label_beyond_every_class_is_refused_by_name(folder: Path, label: int) -> None:
    for path in folder.glob("ball*.off"):
        for ending in (".npy", ".npz", ".txt"):
            path.with_suffix(ending).unlink(missing_ok=True)
        np.save(path.with_suffix(".npy"), np.zeros(42, int))
    labels = np.zeros(42, int)
    labels[7] = label
    np.save(folder / "ball3.npy", labels)
    with pytest.raises(FlashheatError, match=rf"ball3\.npy must .* row 7 \(counted from 0\) is {label}; number"):
        load_folder(folder, "classes", 0.2, seed=0)
    labels[7] = 9_999
    np.save(folder / "ball3.npy", labels)
    assert load_folder(folder, "classes", 0.2, seed=0).n_classes == 10_000


@pytest.mark.filterwarnings("error")
def test_a_label_that_no_integer_holds_is_one_line_and_no_warning() -> None:
    with pytest.raises(FlashheatError, match=r"a\.npy must hold classes 0, 1, 2, \.\.\.; row 1 .* is 1e\+300"):
        checked_labels(np.array([0.0, 1e300]), "a.npy")


def test_folders_that_hold_nothing_to_learn_from_are_refused(tmp_path: Path) -> None:
    for root in (None, tmp_path / "nowhere"):
        with pytest.raises(FlashheatError, match="needs a data root"):
            load_folder(root, "field", 0.2, seed=0)
    with pytest.raises(FlashheatError, match="it holds none"):
        load_folder(tmp_path, "field", 0.2, seed=0)
    write_off(tmp_path / "one.off", icosphere(0).verts, icosphere(0).faces)
    np.save(tmp_path / "one.npy", np.zeros(12))
    with pytest.raises(FlashheatError, match="at least two meshes"):
        load_folder(tmp_path, "field", 0.2, seed=0)


def test_as_many_faces_as_vertices_needs_a_word(tmp_path: Path) -> None:
    for name in "ab":
        write_off(tmp_path / f"{name}.off", np.eye(4)[:, :3], [[0, 1, 2], [0, 3, 1], [1, 3, 2], [2, 3, 0]])
        np.save(tmp_path / f"{name}.npy", np.array([0, 1, 2, 3]))
    with pytest.raises(FlashheatError, match="labels_at vertices or faces"):
        load_folder(tmp_path, "classes", 0.5, seed=0)
    assert load_folder(tmp_path, "classes", 0.5, seed=0, at="faces").train[0].at == "faces"
    write_off(tmp_path / "b.off", icosphere(0).verts, icosphere(0).faces)
    np.save(tmp_path / "b.npy", np.zeros(12, int))
    with pytest.raises(FlashheatError, match=r"b.npy has 12 rows, b.off 12 vertices and 20 faces"):
        load_folder(tmp_path, "classes", 0.5, seed=0, at="faces")


def test_arrays_must_live_on_the_same_kind_of_element(tmp_path: Path) -> None:
    for name, n_rows in (("a", 12), ("b", 20)):
        write_off(tmp_path / f"{name}.off", icosphere(0).verts, icosphere(0).faces)
        np.save(tmp_path / f"{name}.npy", np.zeros(n_rows, int))
    with pytest.raises(FlashheatError, match="a's are at vertices, b's at faces"):
        load_folder(tmp_path, "classes", 0.5, seed=0)


@pytest.mark.parametrize("ending", [".npy", ".npz", ".txt"])
def test_values_come_back_from_every_array_format(tmp_path: Path, ending: str) -> None:
    values = np.random.default_rng(0).normal(size=12).astype(np.float32)
    write_values(tmp_path / f"out{ending}", "pressure", values, icosphere(0), "vertices")
    np.testing.assert_allclose(read_array(tmp_path / f"out{ending}"), values, rtol=1e-8)
    labels = np.arange(20)
    write_values(tmp_path / f"labels{ending}", "label", labels, icosphere(0), "faces")
    assert (read_array(tmp_path / f"labels{ending}") == labels).all()


def test_a_ply_has_the_mesh_of_the_input_and_the_field(tmp_path: Path) -> None:
    import trimesh

    ball = icosphere(1)
    welded = Mesh.read(write_stl(tmp_path / "ball.stl", ball))
    corners = welded.scatter(welded.verts)
    write_values(tmp_path / "out.ply", "pressure", corners[:, 2].astype(np.float32), welded, "vertices")
    loaded = trimesh.load(tmp_path / "out.ply", process=False)
    assert loaded.vertices.shape == (240, 3)
    np.testing.assert_allclose(loaded.triangles, corners.reshape(-1, 3, 3))
    data = loaded.metadata["_ply_raw"]["vertex"]["data"]
    np.testing.assert_allclose(data["pressure"].reshape(-1), corners[:, 2], rtol=1e-6)
    again = Mesh.read(tmp_path / "out.ply")
    assert again.n_faces == 80


def test_a_ply_carries_labels_of_polygons_on_their_triangles(tmp_path: Path) -> None:
    import trimesh

    square = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 2, 0]])
    mesh = Mesh.read(write_off(tmp_path / "house.off", square, [[0, 1, 2, 3], [3, 2, 4]]))
    write_values(tmp_path / "out.ply", "label", np.array([7, 3]), mesh, "faces")
    raw = trimesh.load(tmp_path / "out.ply", process=False).metadata["_ply_raw"]["face"]["data"]
    assert np.asarray(raw["label"]).reshape(-1).tolist() == [7, 7, 3]


def test_outputs_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match=r"must end in \.npy, .*; got out.vtk"):
        write_values(tmp_path / "out.vtk", "label", np.zeros(3), icosphere(0), "vertices")
    with pytest.raises(FlashheatError, match="no_such does not; make it"):
        write_values(tmp_path / "no_such" / "out.npy", "label", np.zeros(3), icosphere(0), "vertices")
