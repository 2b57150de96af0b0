"""The command line as a user has it: a mesh folder becomes a trained run and a field; every failure is one line."""

import json
import re
import shutil
import struct
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import flashheat as package
from flashheat import cli, doctor, ops
from flashheat.mesh import Mesh, ellipsoid, icosphere

demo = import_module("flashheat.train.demo")  # the function of that name hides it


@pytest.fixture
def flashheat(monkeypatch, capsys):
    """Run the command line in this process: `flashheat("check", path)` gives (exit status, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flashheat", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def write_obj(path: Path, mesh: Mesh) -> None:
    lines = [f"v {x:.17g} {y:.17g} {z:.17g}" for x, y, z in mesh.verts]
    path.write_text("\n".join(lines + [f"f {a} {b} {c}" for a, b, c in mesh.faces + 1]))


def write_stl(path: Path, mesh: Mesh) -> None:
    rows = b"".join(
        struct.pack("<12fH", 0, 0, 0, *mesh.verts[face].astype(np.float32).ravel(), 0) for face in mesh.faces
    )
    path.write_bytes(bytes(80) + struct.pack("<I", mesh.n_faces) + rows)


@pytest.fixture(scope="module")
def fields(tmp_path_factory) -> Path:
    """A folder of ellipsoids with the x coordinate beside each as their field."""
    folder = tmp_path_factory.mktemp("fields")
    for i in range(4):
        mesh = ellipsoid((1 + 0.1 * i, 1, 0.8), 1)
        write_obj(folder / f"body{i}.obj", mesh)
        np.save(folder / f"body{i}.npy", mesh.verts[:, 0])
    return folder


SMALL = ("--k-eig", 8, "--width", 8, "--depth", 1, "--learning-rate", 0.01)


@pytest.fixture(scope="module")
def run_folder(fields, tmp_path_factory) -> Path:
    """A run trained on `fields` by the command line."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["train", "pressure", "--data-root", fields, "--out", folder, "--store", folder.parent / "store"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["flashheat", *map(str, [*words, *SMALL, "--epochs", 3])])
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main()
    return folder


@pytest.mark.parametrize(
    "command", ["demo", "check", "precompute", "train", "evaluate", "predict", "doctor", "tune", "profile"]
)
def test_help_describes_every_option(flashheat, command):
    status, out, _ = flashheat(command, "--help")
    assert status == 0
    assert "Usage" in out
    assert len(out.splitlines()) > 5
    assert f"• flashheat {command} " in out


def test_the_version_is_told(flashheat):
    assert flashheat("--version") == (0, f"flashheat {package.__version__}\n", "")


@pytest.mark.parametrize("words", [[], ["bench"]])
def test_no_words_at_all_are_answered_with_the_help(flashheat, words):
    status, out, err = flashheat(*words)
    assert (status, err) == (0, "")
    assert "Commands" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--foo"], "no such option: --foo; see flashheat --help"),
        (["fly"], "no such command 'fly'; see flashheat --help"),
        (["--quiet"], "missing command; see flashheat --help"),
        (["check"], "missing argument 'meshes'; see flashheat check --help"),
        (["train", "--foo"], "no such option: --foo .*; see flashheat train --help"),
        (["train", "--epochs", "x"], "invalid value for '--epochs': .*; see flashheat train --help"),
        (["train"], r"invalid value: name a task .*; see flashheat train --help"),
        (["predict", "a", "b", "--out"], "option '--out' requires an argument; see flashheat predict --help"),
    ],
)
def test_words_that_are_no_command_are_one_plain_line(flashheat, words, line):
    status, out, err = flashheat(*words)
    assert (status, out) == (2, "")
    assert re.fullmatch(f"flashheat: {line}\n", err)


def test_a_run_has_everything_a_reader_needs(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert {"config.json", "log.csv", "result.json", "report.html", "checkpoint.safetensors", "tensorboard"} <= names
    result = json.loads((run_folder / "result.json").read_text())
    assert {"DiffusionNet", "without diffusion", "predict the mean"} == set(result["metrics"])
    assert len((run_folder / "log.csv").read_text().splitlines()) == 4


def test_evaluate_prints_the_figures_of_the_run_again(flashheat, run_folder, tmp_path):
    status, out, _ = flashheat("evaluate", run_folder, "--out", tmp_path / "scores.json")
    assert status == 0
    figures = json.loads((run_folder / "result.json").read_text())["metrics"]["DiffusionNet"]
    again = json.loads((tmp_path / "scores.json").read_text())["metrics"]
    assert again == pytest.approx(figures, rel=1e-5)
    assert f"{figures['relative_l2']:.4g}" in out


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt", ".ply"])
def test_predict_answers_on_the_files_own_vertices(flashheat, run_folder, tmp_path, suffix):
    mesh = icosphere(2)
    write_obj(tmp_path / "body.obj", mesh)
    status, _, err = flashheat("predict", run_folder, tmp_path / "body.obj", "--out", tmp_path / f"field{suffix}")
    assert status == 0, err
    if suffix == ".npy":
        assert np.isfinite(np.load(tmp_path / "field.npy")).all()
        assert np.load(tmp_path / "field.npy").shape == (162,)
    if suffix == ".ply":
        assert Mesh.read(tmp_path / "field.ply").n_verts == 162


def test_predict_on_stl_gives_each_corner_its_value(flashheat, run_folder, tmp_path):
    mesh = icosphere(2)
    write_stl(tmp_path / "body.stl", mesh)
    assert flashheat("predict", run_folder, tmp_path / "body.stl", "--out", tmp_path / "field.npy")[0] == 0
    values = np.load(tmp_path / "field.npy")
    assert values.shape == (3 * mesh.n_faces,)
    per_vertex = [np.unique(values[mesh.faces.ravel() == v]) for v in range(mesh.n_verts)]
    assert all(len(v) == 1 for v in per_vertex)
    assert np.ptp(np.concatenate(per_vertex)) > 0.1


def test_train_resume_of_a_finished_run_says_its_result(flashheat, run_folder):
    status, out, _ = flashheat("train", "--resume", run_folder)
    assert status == 0
    assert "DiffusionNet" in out


def test_resume_refuses_settings_that_it_would_not_use(flashheat, run_folder):
    words = ("train", "pressure", "--resume", run_folder, "--epochs", 50, "--k-eig", 128, "--dropout")
    status, out, err = flashheat(*words)
    assert status == 2
    assert not out
    assert one_line(err)
    assert "a run goes on with its own settings; leave out --dropout, --epochs, --k-eig, a task" in err


def test_resume_goes_on_where_the_data_are_now(flashheat, run_folder, fields, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "result.json").unlink()
    record = json.loads((run / "config.json").read_text())
    record["config"] |= {"data_root": "/nowhere", "store": "/dev/null/store", "device": "cuda:99"}
    (run / "config.json").write_text(json.dumps(record))
    words = ("train", "--resume", run, "--data-root", fields, "--store", tmp_path / "store")
    status, _, err = flashheat(*words, "--device", "cpu", "--threads", 1)
    assert status == 0, err
    assert json.loads((run / "result.json").read_text())["metrics"].keys() == {
        "DiffusionNet", "without diffusion", "predict the mean"
    }  # fmt: skip
    assert len(list((tmp_path / "store").glob("*.safetensors"))) == 4
    assert json.loads((run / "config.json").read_text()) == record


def test_precompute_reports_what_failed_and_does_the_rest(flashheat, tmp_path, caplog):
    (tmp_path / "meshes").mkdir()
    write_obj(tmp_path / "meshes" / "good.obj", icosphere(1))
    (tmp_path / "meshes" / "bad.obj").write_text("v 0 0 nan\nf 1 1 1\n")
    words = ("precompute", tmp_path / "meshes", "--store", tmp_path / "store", "--k-eig", 8)
    status, _, err = flashheat(*words)
    assert status == 1
    assert [line for line in err.splitlines() if "failed" in line and "bad.obj" in line]
    assert caplog.messages[-1] == "operators: 1 of 2 meshes succeeded, 1 failed"
    assert len(list((tmp_path / "store").glob("*.safetensors"))) == 1


def test_demo_goes_on_with_its_own_run_alone(flashheat, run_folder, tmp_path, monkeypatch):
    status, _, err = flashheat("demo", "--out", run_folder)
    assert status == 1
    assert "holds another run, of seed 0: choose another --out" in err
    small = replace(demo.demo_config(), n_train=2, n_test=1, epochs=1, k_eig=8, width=8, depth=1)
    monkeypatch.setattr(demo, "demo_config", lambda seed=0: replace(small, seed=seed))
    words = ("demo", "--out", tmp_path / "run", "--store", tmp_path / "store")
    assert flashheat(*words)[0] == 0
    assert flashheat(*words)[0] == 0
    status, _, err = flashheat(*words, "--seed", 1)
    assert status == 1
    assert "the demo of seed 1 needs a folder of its own" in err


def test_doctor_knows_the_versions_and_tests_itself(flashheat):
    status, out, _ = flashheat("doctor", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["versions"]["needed"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["self-test"]["cpu"].startswith("exact")
    assert set(found["triton"]) == {"version", "ptxas", "cache"}


def test_doctor_fails_where_the_ops_compute_wrongly(flashheat, monkeypatch):
    right = ops.diffuse
    monkeypatch.setattr(ops, "diffuse", lambda x, *args: right(x, *args) + x.detach().round())
    status, out, _ = flashheat("doctor")
    assert status == 1
    assert "WRONG: diffuse is off by up to" in out
    monkeypatch.setattr(ops, "diffuse", lambda *_: 1 / 0)
    status, out, _ = flashheat("doctor")
    assert status == 1
    assert "WRONG: ZeroDivisionError: division by zero" in out


@pytest.mark.parametrize(("kind", "warns"), [("ext4", False), ("nfs4", True), ("fuse.sshfs", True)])
def test_doctor_warns_of_a_triton_cache_on_a_network(tmp_path, kind, warns):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 0:1 / / rw - overlay overlay rw\n"
        f"2 1 0:2 / {tmp_path}/home rw shared:1 - {kind} server:/home rw\n"
        f"3 1 0:3 / {tmp_path}/home2 rw - ext4 /dev/x rw\n"
    )
    assert ("on a network" in doctor.describe_cache(tmp_path / "home/a/.triton/cache", mounts)) == warns
    assert "on a network" not in doctor.describe_cache(tmp_path / "home2/cache", mounts)


def test_doctor_warns_of_a_triton_cache_that_cannot_be_written(flashheat, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way of a folder")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    status, out, _ = flashheat("doctor")
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith("  cache:")]
    assert "where no kernel can be kept: cannot write to" in line
    assert line.endswith("choose another folder, by TRITON_CACHE_DIR")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_doctor_names_the_solver_of_each_device(monkeypatch, on_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    told = doctor.path_of_eigenpairs()
    assert "CHOLMOD shift-invert" in told
    assert ("subspace-multifrontal" in told) == on_gpu


def one_line(err: str) -> bool:
    lines = [line for line in err.splitlines() if line.strip()]
    return len(lines) == 1 and lines[0].startswith("flashheat: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "absent.obj"], "absent.obj"),
        (["check", "."], "folder"),
        (["train", "pressure", "--data-root", "absent"], "absent"),
        (["train", "pressure", "--dataset", "other"], "other"),
        (["train", "cooking", "--dataset", "flow"], "cooking"),
        (["train", "pressure", "--dataset", "flow", "--inputs", "smell"], "smell"),
        (["train", "segmentation", "--dataset", "rna", "--data-root", "absent"], "absent"),
        (["train", "--resume", "absent"], "absent"),
        (["evaluate", "absent"], "absent"),
        (["predict", "absent", "absent.obj", "--out", "x.npy"], "absent"),
        (["precompute", "absent.obj"], "absent.obj"),
        (["demo", "--store", "file"], "file"),
        (["tune", "--vertices", "0"], "a size to tune must lie between"),
        (["tune", "--vertices", "100", "--precision", "bf16"], "highest, high or half (bf16 and fp16); it is 'bf16'"),
    ],
)
def test_a_failure_is_one_clear_line(flashheat, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way of a folder")
    status, _, err = flashheat("--quiet", *words)
    assert status == 1
    assert told in err
    assert one_line(err) or (words[0] == "precompute" and len(err.splitlines()) == 1)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_check_reports_every_file_though_some_cannot_be_read(flashheat, tmp_path, options):
    good = tmp_path / "good.obj"
    write_obj(good, icosphere(1))
    (tmp_path / "bad.obj").write_text("v 0 0 nan\nf 1 1 1\n")
    status, out, err = flashheat("check", tmp_path / "absent.obj", good, tmp_path / "bad.obj", good, *options)
    assert status == 1
    assert out.count("good.obj") == 2
    lines = err.splitlines()
    assert [name in line for name, line in zip(("absent.obj", "bad.obj"), lines, strict=True)] == [True, True]
    assert all(line.startswith("flashheat: ") for line in lines)


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["flashheat", "check", "absent.obj", "--debug"])
    with pytest.raises(ValueError, match=r"absent\.obj"):
        cli.main()


def test_predict_refuses_what_it_cannot_write_before_it_computes(flashheat, run_folder, tmp_path):
    write_obj(tmp_path / "body.obj", icosphere(1))
    for out in ("field.xyz", "absent/field.npy"):
        status, _, err = flashheat("--quiet", "predict", run_folder, tmp_path / "body.obj", "--out", tmp_path / out)
        assert status == 1
        assert one_line(err)


def test_every_broken_file_is_checked_and_predicted_without_a_traceback_or_nan(
    flashheat, run_folder, shared_data, tmp_path
):
    """At the command line: one line and exit 1, or an answer that is finite on every vertex of the file."""
    files = sorted(
        p for p in (shared_data / "meshes" / "broken").iterdir() if p.suffix in (".obj", ".off", ".ply", ".stl")
    )
    answered = 0
    for file in files:
        status, _, err = flashheat("--quiet", "check", file)
        assert status == 0 or one_line(err) or not err, (file, err)
        status, _, err = flashheat("--quiet", "predict", run_folder, file, "--out", tmp_path / "field.npy")
        if status == 0:
            answered += 1
            assert np.isfinite(np.load(tmp_path / "field.npy")).all(), file
        else:
            assert any(line.startswith("flashheat: ") for line in err.splitlines()), (file, err)
            assert "Traceback" not in err
    assert len(files) == 64
    assert answered > 35


@pytest.mark.slow
def test_predict_on_a_real_mesh(flashheat, run_folder, shared_data, tmp_path):
    status, _, err = flashheat(
        "predict", run_folder, shared_data / "meshes" / "clean" / "horse.ply", "--out", tmp_path / "field.npy"
    )
    assert status == 0, err
    assert np.load(tmp_path / "field.npy").shape == (48485,)
    assert np.isfinite(np.load(tmp_path / "field.npy")).all()
