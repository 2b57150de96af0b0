"""Several processes at work: all files are served whatever fails, and none is left behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from flashheat.errors import FlashheatError
from flashheat.mesh.primitives import icosphere, torus
from flashheat.operators import Operators, OperatorStore
from flashheat.operators import store as store_module
from flashheat.train import precompute
from flashheat.train.precompute import _each_on_device, mesh_files
from flashheat.workers import KILLED, each
from tests.test_data_folder import write_off
from tests.worker_tasks import fail_or_die


@pytest.mark.parametrize("n_workers", [1, 3])
def test_every_file_has_its_answer(n_workers):
    files = [Path(f"{n}{'bad' if n % 3 == 0 else ''}") for n in range(8)]
    found = dict(each(files, fail_or_die, n_workers))
    assert found == {file: "it is bad" if "bad" in file.name else None for file in files}


def test_a_killed_process_costs_its_own_file_alone():
    files = [Path(name) for name in ("a", "deadly", "b", "bad", "deadly too", "c")]
    found = dict(each(files, fail_or_die, 2))
    assert {file.name: why for file, why in found.items()} == {
        "a": None, "b": None, "c": None, "bad": "it is bad", "deadly": KILLED, "deadly too": KILLED
    }  # fmt: skip


def test_leaving_early_ends_the_processes():
    answers = each([Path(str(n)) for n in range(50)], fail_or_die, 2)
    next(answers)
    start = time.monotonic()
    answers.close()
    assert time.monotonic() - start < 5


def test_two_workers_fill_the_store_as_one_does(tmp_path):
    for n, mesh in enumerate((icosphere(1), torus(12, 8), icosphere(2))):
        write_off(tmp_path / f"{n}.off", mesh.verts, mesh.faces)
    (tmp_path / "broken.off").write_text("OFF\n3 1 0\n")
    failures = precompute([tmp_path], k_eig=6, store=str(tmp_path / "two"), workers=2)
    assert list(failures) == [str(tmp_path / "broken.off")]
    precompute([tmp_path], k_eig=6, store=str(tmp_path / "one"))
    assert names(tmp_path / "two") == names(tmp_path / "one")
    with pytest.raises(FlashheatError, match="`k_eig` must be a whole number of at least 1"):
        precompute([tmp_path], k_eig=0, store=str(tmp_path / "one"))
    with pytest.raises(FlashheatError, match="number of workers"):
        precompute([tmp_path], k_eig=6, store=str(tmp_path / "one"), workers=0)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory\nlong"), KeyError("x")])
def test_whatever_a_mesh_brings_about_is_reported_and_stops_nothing(tmp_path, monkeypatch, error):
    for n, mesh in enumerate((icosphere(1), torus(12, 8), icosphere(2))):
        write_off(tmp_path / f"{n}.off", mesh.verts, mesh.faces)
    compute = store_module.compute_operators_of_many

    def fails(meshes, *rest):
        if any(mesh.n_verts == 96 for mesh in meshes):
            raise error
        return compute(meshes, *rest)

    monkeypatch.setattr(store_module, "compute_operators", lambda mesh, k, *rest: fails([mesh], k)[0])
    monkeypatch.setattr(store_module, "compute_operators_of_many", fails)
    for n, found in enumerate(
        (
            precompute([tmp_path], k_eig=6, store=str(tmp_path / "s0")),
            dict(_each_on_device(mesh_files(tmp_path), 6, OperatorStore(tmp_path / "s1"), 1, "cpu")),
        )
    ):
        failed = {str(file): why for file, why in found.items() if why}
        assert list(failed) == [str(tmp_path / "1.off")]
        expected = "worth a report: KeyError" if isinstance(error, KeyError) else "must fit into memory"
        assert expected in failed[str(tmp_path / "1.off")]
        assert len(names(tmp_path / f"s{n}")) == 2


@pytest.mark.parametrize("vertices_at_once", [50, 500_000])
def test_groups_on_a_device_fill_the_store_whatever_fails(tmp_path, monkeypatch, vertices_at_once):
    for n, mesh in enumerate((icosphere(1), torus(12, 8), icosphere(2))):
        write_off(tmp_path / f"{n}.off", mesh.verts, mesh.faces)
    (tmp_path / "broken.off").write_text("OFF\n3 1 0\n")
    write_off(tmp_path / "line.off", [[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]])
    monkeypatch.setitem(_each_on_device.__globals__, "MESHES_AT_ONCE", 3)
    monkeypatch.setitem(_each_on_device.__globals__, "VERTICES_AT_ONCE", vertices_at_once)
    store = OperatorStore(tmp_path / "grouped")
    found = dict(_each_on_device(mesh_files(tmp_path), 6, store, 2, "cpu"))
    assert {file.name for file, why in found.items() if why} == {"broken.off", "line.off"}
    assert "none with area" in found[tmp_path / "line.off"]
    assert len(found) == 5
    precompute([tmp_path], k_eig=6, store=str(tmp_path / "one"))
    assert names(tmp_path / "grouped") == names(tmp_path / "one")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_told_before_any_work(tmp_path):
    write_off(tmp_path / "0.off", icosphere(1).verts, icosphere(1).faces)
    with pytest.raises(FlashheatError, match="cuda"):
        precompute([tmp_path], store=str(tmp_path / "store"), device="cuda")
    assert not (tmp_path / "store").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_store_holds_what_the_cpu_would_find(tmp_path):
    write_off(tmp_path / "0.off", icosphere(3).verts, icosphere(3).faces)
    assert precompute([tmp_path], k_eig=16, store=str(tmp_path / "gpu"), device="cuda") == {}
    assert precompute([tmp_path], k_eig=16, store=str(tmp_path / "cpu")) == {}
    (name,) = names(tmp_path / "gpu")
    assert names(tmp_path / "cpu") == {name}
    there, here = (Operators.load(tmp_path / of / name) for of in ("gpu", "cpu"))
    assert "subspace" in there.solver[0]
    torch.testing.assert_close(there.evecs, here.evecs, rtol=0, atol=1e-4)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_or_a_kill_leaves_no_process_behind(tmp_path, how):
    mesh = icosphere(4)
    for n in range(30):
        write_off(tmp_path / f"{n}.off", mesh.verts * (1 + n), mesh.faces + 0)
    words = ["precompute", tmp_path, "--store", tmp_path / "store", "--k-eig", "100", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flashheat", *map(str, words)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "store").exists() or not names(tmp_path / "store"):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    status = process.wait(10)
    deadline = time.monotonic() + 10
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(process.pid) == []
    if how == signal.SIGINT:
        assert status == 130
        assert process.stderr.read().splitlines()[-1] == "flashheat: interrupted"


def members(group: int) -> list[str]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found
