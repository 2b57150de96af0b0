"""The store on disk: what its key holds, two processes at once, a kill in the middle of a write, damaged entries."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, ellipsoid, icosphere
from flashheat.nn import DiffusionNet
from flashheat.operators import Operators, OperatorStore, compute_operators, compute_operators_of_many, store

BODY = ellipsoid((1.0, 0.8, 0.5), 2)

WRITER = """
import sys, time
from pathlib import Path
from flashheat.mesh import icosphere
from flashheat.operators import OperatorStore
folder, mode = sys.argv[1:]
if mode == "hang":
    import os
    os.fsync = lambda descriptor: (print("writing", flush=True), time.sleep(60))
print("ready", flush=True)
sys.stdin.readline()
operators = OperatorStore(folder).get(icosphere(2), 24)
print(operators.evals.double().sum().item(), flush=True)
"""


def writer(folder: Path, mode: str = "normal") -> subprocess.Popen:
    arguments = [sys.executable, "-c", WRITER, str(folder), mode]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def entries(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def test_computes_once_and_reads_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = OperatorStore(tmp_path / "made" / "for us")
    first = kept.get(BODY, 20)
    monkeypatch.setattr(store, "compute_operators", lambda *args, **options: pytest.fail("computed twice"))
    again = OperatorStore(kept.folder).get(Mesh(BODY.verts.copy(), BODY.faces.copy()), 20)
    expected = compute_operators(BODY, 20)
    for operators in (first, again):
        assert operators.evecs.shape == (162, 20)
        torch.testing.assert_close(operators.evals, expected.evals)
    assert torch.equal(first.evecs, again.evecs)
    assert torch.equal(first.gradY.values, again.gradY.values)
    assert kept.get(BODY, 20, device="cpu").device.type == "cpu"


def test_many_are_read_where_they_are_and_the_others_computed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, meshes = OperatorStore(tmp_path), [icosphere(2), BODY, icosphere(1), BODY]
    before = kept.get(BODY, 8)
    asked = []
    monkeypatch.setattr(
        store, "compute_operators_of_many", lambda of, *args: asked.extend(of) or compute_operators_of_many(of, *args)
    )
    found = kept.get_many(meshes, 8)
    assert [mesh.n_verts for mesh in asked] == [162, 42]
    assert [of.n_verts for of in found] == [162, 162, 42, 162]
    assert torch.equal(found[1].evecs, before.evecs)
    assert torch.equal(kept.get(meshes[2], 8).evecs, found[2].evecs)
    asked.clear()
    assert len(kept.get_many(meshes, 8)) == 4
    assert asked == []


def test_the_key_holds_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, normals = OperatorStore(tmp_path), np.ones((162, 3))
    moved, turned = Mesh(BODY.verts + 1e-13, BODY.faces), Mesh(BODY.verts, np.roll(BODY.faces, 1, axis=1))
    paths = [
        kept.path(BODY), kept.path(BODY, 64), kept.path(BODY, convention="diffusion_net"),
        kept.path(BODY, dtype=torch.float64), kept.path(BODY, normals=normals), kept.path(BODY, normals=2 * normals),
        kept.path(BODY, normals=torch.from_numpy(normals).float()), kept.path(BODY, frames=np.ones((162, 3, 3))),
        kept.path(moved), kept.path(turned),
    ]  # fmt: skip
    monkeypatch.setattr(store, "ALGORITHM_VERSION", store.ALGORITHM_VERSION + 1)
    paths.append(kept.path(BODY))
    assert len(set(paths)) == len(paths)
    assert kept.get(BODY, 8, "diffusion_net", dtype=torch.float64).convention == "diffusion_net"


def test_a_basis_in_bfloat16_is_kept_with_its_gradients(tmp_path: Path) -> None:
    kept, exact = OperatorStore(tmp_path), compute_operators(BODY, 20)
    made, read = (kept.get(BODY, 20, basis=torch.bfloat16) for _ in range(2))
    assert len(entries(tmp_path)) == 1
    for of in (made, read, Operators.pack([read, read]).split()[1]):
        assert (of.dtype, of.basis_dtype) == (torch.float32, torch.bfloat16)
        for name in ("evecs", "gradX_evecs", "gradY_evecs"):
            expected = getattr(exact, name)
            assert torch.equal(getattr(of, name), expected.to(torch.bfloat16))  # of what was not rounded
        assert torch.equal(of.mass, exact.mass)
    assert kept.path(BODY, 20) != kept.path(BODY, 20, basis=torch.bfloat16)
    with pytest.raises(FlashheatError, match=r"`basis_dtype`: got torch\.bfloat16, torch\.float32"):
        Operators.pack([made, exact])
    net = DiffusionNet(3, 2, width=8, depth=1).eval()
    torch.testing.assert_close(net(exact.frames[:, 2], read), net(exact.frames[:, 2], exact), rtol=0.1, atol=0.05)


def test_a_basis_that_is_no_float_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match=r"`basis` must be one of .*: got torch\.int32"):
        OperatorStore(tmp_path).get(BODY, 20, basis=torch.int32)


@pytest.mark.parametrize("scale", [1e-6, 1e9])
def test_a_basis_beyond_its_dtype_is_refused_and_not_kept(tmp_path: Path, scale: float) -> None:
    with pytest.raises(FlashheatError, match=r"must fit torch\.float16: its largest entry is .*; normalise the mesh"):
        OperatorStore(tmp_path).get(Mesh(scale * BODY.verts, BODY.faces), 20, basis=torch.float16)
    assert entries(tmp_path) == []
    assert OperatorStore(tmp_path).get(BODY, 20, basis=torch.float16).evecs.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_an_absent_device_is_told_and_the_entry_stays(tmp_path: Path) -> None:
    kept = OperatorStore(tmp_path)
    kept.get(BODY, 20)
    for ask in (kept.get, lambda mesh, k, device: kept.get_many([mesh], k, device=device)):
        with pytest.raises(FlashheatError, match="the device must be cpu, cuda or cuda:N; got 'cuda'"):
            ask(BODY, 20, device="cuda")
    with pytest.raises(FlashheatError, match="the device must be"):
        Operators.load(kept.path(BODY, 20), "cuda")
    assert entries(tmp_path) == [".safetensors"]


def test_the_key_of_a_large_mesh_holds_every_byte(tmp_path: Path) -> None:
    kept = OperatorStore(tmp_path)
    verts = np.random.default_rng(0).random((200_000, 3))  # more than is hashed at once
    faces, keys = np.zeros((0, 3), int), set()
    for position in (None, 0, 43_690, 131_072, 599_999):
        changed = verts.copy()
        if position is not None:
            changed.reshape(-1)[position] = np.nextafter(changed.reshape(-1)[position], 2)
        keys.add(kept.path(SimpleNamespace(verts=changed, faces=faces)))
    assert len(keys) == 5
    halves = [verts[:131_072], verts[131_072:]]
    assert kept.path(SimpleNamespace(verts=np.concatenate(halves[::-1]), faces=faces)) not in keys


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another format"])
def test_a_damaged_entry_is_set_aside_and_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    kept = OperatorStore(tmp_path)
    whole = kept.get(BODY, 8)
    path = kept.path(BODY, 8)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    changed = {"flipped": bytes(content), "cut": bytes(content[:900]), "empty": b"", "another format": b"PK\3\4" * 99}
    path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING, logger="flashheat"):
        mended = kept.get(BODY, 8)
    assert sum("set aside" in message for message in caplog.messages) == 1
    assert path.with_suffix(".damaged").read_bytes() == changed[damage]
    assert torch.equal(Operators.load(path).evecs, mended.evecs)
    torch.testing.assert_close(mended.evals, whole.evals)


def test_a_folder_in_an_entrys_place_is_set_aside_or_told(tmp_path: Path) -> None:
    kept = OperatorStore(tmp_path)
    path = kept.path(BODY, 8)
    path.mkdir()
    kept.get(BODY, 8)
    assert path.is_file()
    path.unlink()
    path.mkdir()
    path.with_suffix(".damaged").rmdir()
    path.with_suffix(".damaged").write_text("in the way")
    with pytest.raises(
        FlashheatError, match=r"must be a whole file; .*, and cannot be set aside as .*\.damaged: Not a dir"
    ):
        kept.get(BODY, 8)


def test_two_processes_may_write_one_entry(tmp_path: Path) -> None:
    writers = [writer(tmp_path) for _ in range(2)]
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    sums = [process.communicate(timeout=60)[0] for process in writers]
    assert [process.returncode for process in writers] == [0, 0]
    assert sums[0] == sums[1]
    assert entries(tmp_path) == [".safetensors"]
    OperatorStore(tmp_path).get(icosphere(2), 24)


def test_a_kill_in_the_middle_of_a_write_leaves_nothing_wrong(tmp_path: Path) -> None:
    process = writer(tmp_path, "hang")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert entries(tmp_path) == [".tmp"]
    OperatorStore(tmp_path).get(icosphere(2), 24)
    assert entries(tmp_path) == [".safetensors", ".tmp"]  # it may belong to a living writer
    (left,) = tmp_path.glob("*.tmp")
    old = time.time() - 2 * store.STALE_AFTER_SECONDS
    os.utime(left, (old, old))
    OperatorStore(tmp_path)
    assert entries(tmp_path) == [".safetensors"]


def test_a_failed_write_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FlashheatError, match="folder"):
        OperatorStore(tmp_path / "file")

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    kept = OperatorStore(tmp_path / "store")
    with pytest.raises(FlashheatError, match="No space left") as error:
        kept.get(BODY, 4)
    assert "\n" not in str(error.value)
    assert entries(kept.folder) == []
