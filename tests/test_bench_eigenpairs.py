"""The benchmark of eigenpairs on tiny meshes: both sides solve the same problem and are judged by neither's code."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from flashheat.bench import eigenpairs, figures, pipeline
from flashheat.errors import FlashheatError


def test_both_sides_are_measured_and_older_rows_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenpairs, "_threads", lambda: [1])
    out = tmp_path / "operators.jsonl"
    for k in (8, 8, 9):
        eigenpairs.run(out, "abc", [700], [], k, ["flashheat"])
    eigenpairs.run(out, "abc", [700], [], 8, ["eigsh"])
    rows = figures.read_rows(out)
    assert sorted((row["mesh"], row["K"], row["impl"]) for row in rows) == [
        (mesh, *of) for mesh in ("icosphere", "slivers") for of in ((8, "eigsh"), (8, "flashheat"), (9, "flashheat"))
    ]
    limits = {"flashheat": eigenpairs.TOLERANCE, "eigsh": 1e-3}  # rounding alone leaves SciPy's above 1e-5 on slivers
    assert all(0 < row["residual"] < limits[row["impl"]] and row["seconds"] > 0 for row in rows)
    assert "| icosphere | 642 | 8 |" in figures.eigenpair_table(rows)


def test_a_wrong_result_of_ours_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenpairs, "_threads", lambda: [1])
    monkeypatch.setattr(eigenpairs, "TOLERANCE", 0.0)
    with pytest.raises(FlashheatError, match="residuals must be at most"):
        eigenpairs.run(tmp_path / "o.jsonl", "", [200], [], 4, ["flashheat"])
    assert not (tmp_path / "o.jsonl").exists()
    with pytest.raises(FlashheatError, match="implementation must be one of flashheat, cuda, eigsh; it is 'arpack'"):
        eigenpairs.run(tmp_path / "o.jsonl", "", [200], [], 4, ["arpack"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashheatError, match="implementation cuda needs a CUDA device"):
        eigenpairs.run(tmp_path / "o.jsonl", "", [200], [], 4, ["cuda"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_row_names_it(tmp_path: Path) -> None:
    eigenpairs.run(tmp_path / "o.jsonl", "", [2500], [], 40, ["cuda"])
    rows = figures.read_rows(tmp_path / "o.jsonl")
    assert {(row["impl"], row["solver"], row["device"]) for row in rows} == {
        ("cuda", "subspace-multifrontal", torch.cuda.get_device_name())
    }


def test_the_residual_is_that_of_the_definition() -> None:
    mass, evals = np.array([1.0, 2.0, 0.0]), np.array([0.0, 4 * np.pi])
    L, evecs = scipy.sparse.diags_array([0.0, 8 * np.pi, 5.0]), np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert eigenpairs._residual(L.tocsr(), mass, evals, evecs) < 1e-15
    off = eigenpairs._residual(L.tocsr(), mass, evals + np.array([0, 1.0]), evecs)
    assert off == pytest.approx(1 / (4 * np.pi + 1))


def test_what_is_no_row_of_a_known_benchmark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"bench": "operators", "V": 3}))
    with pytest.raises(FlashheatError, match="must name its mesh, K, impl"):
        figures.read_rows(tmp_path / "rows.jsonl")


def test_what_surrounds_the_eigenpairs_has_rows_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "VERTICES", 300)
    monkeypatch.setattr(pipeline, "MESHES", 2)
    out = tmp_path / "operators.jsonl"
    for _ in range(2):
        pipeline.run(out, "abc", ["geometry", "many", "store"], 8, ["flashheat", "eigsh"])
    rows = figures.read_rows(out)
    assert [row["bench"] for row in rows] == ["geometry"] * 2 + ["many"] + ["store"] * 6
    assert all(row["seconds"] > 0 and row["commit"] == "abc" for row in rows)
    text = figures.insert("<!-- pipeline-cpu: begin -->\n<!-- pipeline-cpu: end -->", rows)
    assert "| L, mass and gradients of icosphere | 162 | cpu |" in text
    assert "| all of 2 meshes | 1,000 | cpu |" in text
    with pytest.raises(FlashheatError, match="a part must be one of eigenpairs, geometry, many, store; it is 'all'"):
        pipeline.run(out, "abc", ["all"], 8, ["flashheat"])
