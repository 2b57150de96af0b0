"""Operators as a record: pack and split, truncate, to, pickle, DataLoader, save and load, and what they refuse."""

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, ellipsoid, grid, icosphere
from flashheat.operators import CSR, Operators, compute_operators, serial

F64 = torch.float64
CACHED = ("_gradX_evecs", "_gradY_evecs")


def tensors(operators: Operators) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in vars(operators).items() if isinstance(value, torch.Tensor)}
    for name in ("L", "gradX", "gradY"):
        found |= {f"{name}.{part}": getattr(getattr(operators, name), part) for part in ("indptr", "indices", "values")}
    return found


def assert_same(ours: Operators, theirs: Operators) -> None:
    left, right = tensors(ours), tensors(theirs)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name
    assert (ours.solver, ours.convention) == (theirs.solver, theirs.convention)


@pytest.fixture(scope="module")
def parts() -> list[Operators]:
    cloud = Mesh(icosphere(1).verts, np.zeros((0, 3), int))
    meshes = [ellipsoid((1.0, 0.8, 0.5), 2), grid(3, 4), Mesh(np.eye(3), [[0, 1, 2]]), cloud]
    return [compute_operators(mesh, 20) for mesh in meshes]


def test_split_undoes_pack_bitwise(parts: list[Operators]) -> None:
    packed = Operators.pack(parts)
    assert (packed.batch_size, packed.n_verts, packed.k_eig) == (4, 162 + 12 + 3 + 42, 20)
    assert packed.k_valid.tolist() == [20, 12, 3, 20]
    assert packed.offsets.tolist() == [0, 162, 174, 177, 219]
    for part, original in zip(packed.split(), parts, strict=True):
        assert_same(part, original)
    assert_same(Operators.pack([packed.split()[0], Operators.pack(parts[1:])]), packed)


def test_a_pack_acts_like_its_meshes_one_by_one(parts: list[Operators]) -> None:
    packed = Operators.pack(parts)
    values = np.random.default_rng(0).standard_normal(packed.n_verts)
    for name in ("L", "gradX", "gradY"):
        whole = getattr(packed, name).to_scipy() @ values
        for part, start in zip(parts, packed.offsets.tolist(), strict=False):
            rows = slice(start, start + part.n_verts)
            np.testing.assert_allclose(whole[rows], getattr(part, name).to_scipy() @ values[rows], rtol=1e-12)
    assert (packed.faces[-1] < packed.n_verts).all()
    assert packed.gradY.indices is packed.gradX.indices


def test_cached_bases_are_products_and_travel_along(parts: list[Operators]) -> None:
    exact = [part.gradX.to_scipy() @ part.evecs.double().numpy() for part in parts]
    for part, product in zip(parts, exact, strict=True):
        np.testing.assert_allclose(part.gradX_evecs, product, atol=1e-5 * max(1, np.abs(product).max()))
        assert part.gradY_evecs.dtype == torch.float32
    packed = Operators.pack(parts)
    assert "_gradX_evecs" in vars(packed)
    assert torch.equal(packed.split()[1].gradX_evecs, parts[1].gradX_evecs)
    for copy in (packed.truncate(5), packed.to(F64), pickle.loads(pickle.dumps(packed))):
        assert all(name in vars(copy) for name in CACHED)
    assert packed.to(F64).gradX_evecs.dtype == F64
    fresh = replace(packed)
    assert "_gradX_evecs" not in vars(fresh)
    torch.testing.assert_close(fresh.gradX_evecs, packed.gradX_evecs, rtol=1e-6, atol=1e-6)


def test_bases_made_in_inference_mode_serve_training_too(parts: list[Operators]) -> None:
    fresh = replace(parts[0])
    with torch.inference_mode():
        _ = fresh.gradX_evecs
    weight = torch.ones(20, requires_grad=True)
    (fresh.gradX_evecs @ weight).sum().backward()
    assert weight.grad is not None


def test_truncate_gives_views_of_the_lowest_eigenpairs(parts: list[Operators]) -> None:
    packed = Operators.pack(parts)
    few = packed.truncate(5)
    assert few.evecs.shape == (219, 5)
    assert few.evals.shape == few.residuals.shape == (4, 5)
    assert few.k_valid.tolist() == [5, 5, 3, 5]
    assert few.evecs.data_ptr() == packed.evecs.data_ptr()
    assert few.evecs.stride() == (20, 1)
    assert_same(few.truncate(5), few)
    for k in (0, 21):
        with pytest.raises(FlashheatError, match=r"1\.\.20"):
            packed.truncate(k)


def test_to_changes_floats_only(parts: list[Operators]) -> None:
    double = parts[0].to(F64)
    for name, tensor in tensors(double).items():
        assert tensor.dtype == (F64 if tensors(parts[0])[name].is_floating_point() else torch.int64)
    assert_same(double.to(torch.float32), parts[0])
    assert_same(parts[0].to("cpu", dtype=F64), double)
    assert parts[0].to("meta").device.type == "meta"
    assert double.gradY.indices is double.gradX.indices


def test_torch_forms_of_the_matrices(parts: list[Operators]) -> None:
    operators = parts[0].to(F64)
    values = torch.linspace(-1, 1, operators.n_verts, dtype=F64)
    np.testing.assert_allclose(operators.L.to_torch() @ values, operators.L.to_scipy() @ values.numpy(), atol=1e-13)
    complex_gradient = operators.complex_gradient() @ values.to(torch.complex128)
    np.testing.assert_allclose(complex_gradient.real, operators.gradX.to_scipy() @ values.numpy(), atol=1e-12)
    np.testing.assert_allclose(complex_gradient.imag, operators.gradY.to_scipy() @ values.numpy(), atol=1e-12)


def test_sparse_tensors_come_without_a_warning() -> None:
    script = (
        "from flashheat import compute_operators; from flashheat.mesh import icosphere; "
        "compute_operators(icosphere(1), 4).complex_gradient()"
    )
    run = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, check=True)
    assert "UserWarning" not in run.stderr  # torch warns once a process: another test may have had it


def test_from_scipy_sums_duplicates_and_sorts_columns() -> None:
    messy = scipy.sparse.csr_array((np.array([1.0, 2.0, 4.0]), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2))
    matrix = CSR.from_scipy(messy)
    assert (matrix.indptr.tolist(), matrix.indices.tolist(), matrix.values.tolist()) == ([0, 2, 2], [0, 1], [2.0, 5.0])


def test_pickle_and_torch_save(parts: list[Operators]) -> None:
    assert_same(pickle.loads(pickle.dumps(parts[1])), parts[1])
    buffer = io.BytesIO()
    torch.save(parts[1], buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer, weights_only=False), parts[1])


def test_a_data_loader_with_a_worker_packs_them(parts: list[Operators]) -> None:
    loader = DataLoader(parts, batch_size=3, collate_fn=Operators.pack, num_workers=1)
    first, second = loader
    assert_same(first, Operators.pack(parts[:3]))
    assert second.batch_size == 1


@pytest.mark.parametrize("packed", [False, True])
def test_load_returns_what_save_wrote(tmp_path: Path, parts: list[Operators], packed: bool) -> None:
    operators = replace(Operators.pack(parts) if packed else parts[0])  # without cached bases, which are not saved
    operators.save(tmp_path / "one.safetensors")
    assert_same(Operators.load(tmp_path / "one.safetensors"), operators)
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]
    operators.truncate(4).save(tmp_path / "one.safetensors")
    assert_same(Operators.load(tmp_path / "one.safetensors"), operators.truncate(4))


def test_a_saved_file_is_safetensors(tmp_path: Path, parts: list[Operators]) -> None:
    from safetensors.torch import load_file

    parts[1].save(tmp_path / "one.safetensors")
    read = load_file(tmp_path / "one.safetensors")
    assert torch.equal(read["evecs"], parts[1].evecs)
    assert torch.equal(read["grad.indices"], parts[1].gradX.indices)


def test_a_large_entry_is_read_by_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[Operators]
) -> None:
    monkeypatch.setattr("flashheat.operators.serial.WORDS_AT_ONCE", 50)
    parts[0].save(tmp_path / "one")
    content = bytearray((tmp_path / "one").read_bytes())
    assert torch.equal(Operators.load(tmp_path / "one").evecs, parts[0].evecs)
    for first, second in ((-8 * 60, -8 * 10), (-8 * 51, -8)):  # two words change places, in and beside a block
        swapped = content.copy()
        one, other = content[first : first + 8], content[second : (second + 8) or None]
        assert one != other
        swapped[first : first + 8], swapped[second : (second + 8) or None] = other, one
        (tmp_path / "one").write_bytes(swapped)
        with pytest.raises(FlashheatError, match="checksum"):
            Operators.load(tmp_path / "one")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_read_onto_a_gpu(tmp_path: Path, parts: list[Operators]) -> None:
    parts[1].save(tmp_path / "one")
    there = Operators.load(tmp_path / "one", "cuda")
    assert there.device.type == "cuda"
    assert torch.equal(there.evecs.cpu(), parts[1].evecs)
    content = bytearray((tmp_path / "one").read_bytes())
    content[-100] ^= 1
    (tmp_path / "one").write_bytes(content)
    with pytest.raises(FlashheatError, match="checksum"):
        Operators.load(tmp_path / "one", "cuda")


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path, parts: list[Operators]) -> None:
    parts[2].save(tmp_path / "good")
    content, damaged = (tmp_path / "good").read_bytes(), tmp_path / "damaged"
    for position in range(0, len(content), 17):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        damaged.write_bytes(flipped)
        with pytest.raises(FlashheatError, match="damaged"):
            Operators.load(damaged)
    for length in range(0, len(content), 97):
        damaged.write_bytes(content[:length])
        with pytest.raises(FlashheatError, match="damaged"):
            Operators.load(damaged)


def forged(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file with another header, whose checksum fits."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    change(header)
    metadata = header.pop("__metadata__")
    metadata.pop("checksum")
    data = torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8)
    text = json.dumps(header | {"__metadata__": metadata | {"checksum": serial._digest(data, header, metadata)}})
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + content[start:])
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["mass"].update(data_offsets=[0, 2**70]),
        lambda header: header["mass"].update(shape=[2**60]),
        lambda header: header["mass"].update(dtype="C64"),
        lambda header: header["mass"].pop("dtype"),
        lambda header: header.pop("evecs"),
        lambda header: header.pop("L.indptr"),
        lambda header: header["__metadata__"].pop("solver"),
        lambda header: header["__metadata__"].update(solver="["),
        lambda header: header.update(mass=header["evals"]),
    ],
)
def test_a_file_of_something_else_is_one_line(
    tmp_path: Path, parts: list[Operators], change: Callable[[dict[str, Any]], object]
) -> None:
    path = tmp_path / "one.safetensors"
    parts[0].save(path)
    Operators.load(forged(path, lambda _: None))
    with pytest.raises(FlashheatError, match="must hold operators, whole") as error:
        Operators.load(forged(path, change))
    assert "\n" not in str(error.value)


def test_a_header_nested_without_end_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    path.write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)
    with pytest.raises(FlashheatError, match="is damaged"):
        Operators.load(path)


def test_absent_file_and_unwritable_folder_are_one_line(tmp_path: Path, parts: list[Operators]) -> None:
    with pytest.raises(FlashheatError, match=r"absent\.safetensors"):
        Operators.load(tmp_path / "absent.safetensors")
    with pytest.raises(FlashheatError, match="folder"):
        parts[0].save(tmp_path / "no such folder" / "one.safetensors")


def test_parts_of_different_meshes_are_refused(parts: list[Operators]) -> None:
    for name, value in (
        ("mass", parts[0].mass[:-1]), ("evals", parts[0].evals[:-1]), ("frames", parts[1].frames), ("L", parts[1].L),
        ("faces", parts[0].faces[:, :2]), ("offsets", torch.tensor([0, 1, 2])),
    ):  # fmt: skip
        with pytest.raises(FlashheatError):
            replace(parts[0], **{name: value})
    with pytest.raises(FlashheatError, match="indptr"):
        CSR(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), (2, 2))
    with pytest.raises(FlashheatError, match="one length"):
        CSR(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0, 2.0]), (1, 1))


def test_only_alike_operators_are_packed(parts: list[Operators]) -> None:
    upstream = compute_operators(grid(3, 3), 20, convention="diffusion_net")
    for other, name in ((parts[0].truncate(7), "k_eig"), (parts[0].to(F64), "dtype"), (upstream, "convention")):
        with pytest.raises(FlashheatError, match=name):
            Operators.pack([parts[1], other])
    with pytest.raises(FlashheatError, match="empty"):
        Operators.pack([])


def test_the_gradient_bases_do_not_load_the_compiler():
    code = (
        "import sys, flashheat; from flashheat.mesh import icosphere; "
        "flashheat.compute_operators(icosphere(1), k_eig=4).gradX_evecs; print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
