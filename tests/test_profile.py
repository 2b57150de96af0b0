"""`flashheat profile`: what it writes and says; kernels themselves are measured on a GPU only."""

import json
from types import SimpleNamespace

import pytest
import torch

from flashheat import profile
from flashheat.errors import FlashheatError

SMALL = {"vertices": 200, "k": 8, "c": 4, "precision": "highest", "device": "cpu", "plain": False, "proton": False}


@pytest.mark.parametrize("what", profile.WHAT)
def test_an_op_and_a_training_step_leave_a_table_and_a_trace(what, tmp_path):
    text = profile.run(what, tmp_path / "new", **SMALL)
    rows = json.loads((tmp_path / "new" / "kernels.json").read_text())
    assert "aten::mm" in {row["name"] for row in rows}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["us"] for row in rows] == sorted((row["us"] for row in rows), reverse=True)
    trace = json.loads((tmp_path / "new" / "trace.json").read_text())
    assert sum(event.get("name") == f"flashheat {what}" for event in trace["traceEvents"]) == 10
    assert "aten::mm" in text
    assert f"flashheat profile {what} --vertices 200 --k 8 --c 4 --precision highest --plain" in text
    assert "ncu --set full" in text
    assert ("regex:diffuse_kernel" in text) == (what == "op")
    assert "nsys profile" in text


def test_plain_calls_write_nothing(tmp_path):
    assert profile.run("op", tmp_path / "new", **SMALL | {"plain": True}) == "10 calls"
    assert not (tmp_path / "new").exists()


def test_proton_says_where_it_cannot_run(tmp_path):
    assert "Proton was not run" in profile.run("op", tmp_path, **SMALL | {"proton": True})


def test_our_kernel_has_its_bytes_flops_and_share_of_the_floor():
    def event(key: str, count: int, us: float, device: str = "CUDA", is_range: bool = False) -> SimpleNamespace:
        of = getattr(torch.autograd.DeviceType, device)
        return SimpleNamespace(
            key=key, count=count, self_device_time_total=us, device_type=of, is_user_annotation=is_range
        )

    events = [
        event("diffuse_kernel", 20, 400.0),
        event("flashheat op", 10, 900.0, is_range=True),
        event("Optimizer.step#Adam.step", 10, 300.0, is_range=True),
        event("aten::mul", 9, 5.0, device="CPU"),
        event("a_copy", 1, 100.0),
    ]
    rows = profile.kernels(events, "cuda", {"bytes": 24.6e6, "flops": 1.05e9, "floor_us": 5.0})
    assert [row["name"] for row in rows] == ["diffuse_kernel", "a_copy"]
    assert rows[0]["us_a_call"] == 20.0
    assert rows[0]["share_of_floor"] == 0.25
    assert "80.0%     20      20.00     24.6    1.05      25%  diffuse_kernel" in profile.table(rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"precision": "fp8"}, "precision"), ({"vertices": 0}, "vertices"), ({"device": "cuda"}, "CUDA")],
)
def test_what_cannot_be_profiled_is_refused(change, words, tmp_path):
    if words == "CUDA" and torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(FlashheatError, match=words):
        profile.run("op", tmp_path, **SMALL | change)
    with pytest.raises(FlashheatError, match="op, step"):
        profile.run("epoch", tmp_path, **SMALL)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("what", profile.WHAT)
def test_on_a_gpu_the_kernel_is_there_with_its_floor(what, tmp_path):
    profile.run(what, tmp_path, **SMALL | {"vertices": 16_000, "k": 128, "c": 128, "device": "cuda", "proton": True})
    rows = {row["name"]: row for row in json.loads((tmp_path / "kernels.json").read_text())}
    if what == "op":
        assert 0.05 < rows["diffuse_kernel"]["share_of_floor"] <= 1
    assert (tmp_path / "proton.hatchet").exists()
