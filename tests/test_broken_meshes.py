"""docs/broken_meshes.md is a promise about every broken file: outcome, kinds of fault, words of a refusal."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from flashheat.errors import MeshError
from flashheat.mesh import Mesh, icosphere
from flashheat.mesh.report import FAULTS

TABLE = Path(__file__).resolve().parents[1] / "docs" / "broken_meshes.md"
FORMATS = {".obj", ".off", ".ply", ".stl"}


def promises() -> dict[str, list[str]]:
    """File name -> the parts of its outcome."""
    rows = [line.split("|")[1:3] for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return {name.strip(" `"): outcome.strip().split("; ") for name, outcome in rows}


def hold_to(outcome: list[str], path: Path) -> None:
    """Read and check `path`; fail where that is not what `outcome` says."""
    if outcome[0].startswith("refused: "):
        with pytest.raises(MeshError) as refusal:
            Mesh.read(path)
        message = str(refusal.value)
        assert message.startswith(f"cannot read {path}: ")
        assert "\n" not in message
        assert all(words.removeprefix("refused: ") in message for words in outcome), message
        return
    mesh = Mesh.read(path)
    report = mesh.check()
    assert outcome[0] == "loads" or outcome[0].startswith("loads with faults: ")
    named = set(filter(None, outcome[0].removeprefix("loads").removeprefix(" with faults: ").split(", ")))
    assert named <= FAULTS.keys()
    assert {fault.kind for fault in report.faults} == named, str(report)
    assert report.usable == (len(outcome) == 1), str(report)
    assert all(words.removeprefix("not usable: ") in "; ".join(report.refusals) for words in outcome[1:])
    assert np.isfinite(mesh.verts).all()
    assert all(math.isfinite(number) for number in (report.area, report.diagonal, report.offset))
    json.dumps(report.to_dict(), allow_nan=False)
    assert len(str(report).splitlines()) >= 3


def test_every_broken_file_is_in_the_table_and_does_what_it_says(shared_data: Path) -> None:
    folder = shared_data / "meshes" / "broken"
    files = {path.name for path in folder.iterdir() if path.suffix in FORMATS}
    table = promises()
    assert len(files) >= 64
    assert files == table.keys()
    for name in sorted(files):
        hold_to(table[name], folder / name)


def test_public_broken_files_load_or_are_refused_in_one_line(shared_data: Path) -> None:
    refused = {}
    for path in sorted((shared_data / "meshes" / "broken_public").iterdir()):
        try:
            str(Mesh.read(path).check())
        except MeshError as error:
            refused[path.name] = str(error)
    assert not any("\n" in message for message in refused.values())
    assert refused.keys() == {
        *("PROBLEMS.tsv", "empty.obj", "empty.ply", "empty.stl", "notenoughindices.obj", "obj_empty.obj"),
        *("obj_wireframe.obj", "ply_empty_ascii.ply", "ply_empty_bin.ply", "ply_empty_header.ply"),
        *("points_emptyascii.ply", "stl_empty_ascii.stl", "stl_empty_bin.stl"),
    }


def test_clean_files_have_no_faults(shared_data: Path) -> None:
    faults = {}
    for path in sorted((shared_data / "meshes" / "clean").iterdir()):
        if path.suffix in FORMATS:
            mesh = Mesh.read(path)
            assert mesh.vertex_map is None
            faults[path.name] = [fault.kind for fault in mesh.check().faults]
    assert faults.pop("horse.ply") == ["inside-out faces"]  # it really is: its volume is negative
    assert len(faults) >= 14
    assert not any(faults.values()), faults


def off(verts: np.ndarray, faces: np.ndarray) -> str:
    """The text of an OFF file."""
    lines = [f"OFF\n{len(verts)} {len(faces)} 0"]
    lines += [" ".join(f"{x:.17g}" for x in vertex) for vertex in verts]
    lines += [" ".join(map(str, [len(face), *face])) for face in faces]
    return "\n".join(lines) + "\n"


BALL = icosphere(2)
V, F = BALL.verts, BALL.faces
MADE = {
    "all_flipped.off": off(V, F[:, ::-1]),
    "count_mismatch.off": off(V, F).replace("162 320 0", "170 320 0"),
    "crlf.off": off(V, F).replace("\n", "\r\n"),
    "duplicate_face_flipped.off": off(V, np.concatenate([F, F[:3, ::-1]])),
    "duplicate_vertices_soup.off": off(V[F].reshape(-1, 3), np.arange(3 * len(F)).reshape(-1, 3)),
    "empty.off": off(V[:0], F[:0]),
    "huge_coords_1e8_offset.off": off(V + 1e8, F),
    "isolated_vertex_first.off": off(np.concatenate([[[9, 9, 9]], V]), F + 1),
    "inconsistent_orientation.off": off(V, np.where(np.arange(len(F))[:, None] % 2, F, F[:, ::-1])),
    "index_out_of_range.off": off(V, np.concatenate([F, [[0, 1, 99999]]])),
    "nan_vertex.off": off(np.where(np.arange(len(V))[:, None] == 7, np.nan, V), F),
    "nonmanifold_edge_fin.off": off(np.concatenate([V, [[2, 2, 2]]]), np.concatenate([F, [[*F[0, :2], len(V)]]])),
    "point_cloud_no_faces.off": off(V, F[:0]),
    "zero_area_repeated_index.off": off(V, np.concatenate([F, [[3, 3, 5], [8, 8, 8]]])),
    "zero_bytes.ply": "",
    "index_zero.obj": "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 0 1 2\n",
    "lines_points_only.obj": "v 0 0 0\nv 1 0 0\nl 1 2\np 1\n",
    "vt_vn_mixed.obj": "v 0 0 0 1 0 0\nv 1 0 0 0 1 0\nv 0 1 0 0 0 1\nvt 0 0\nvn 0 0 1\nf 1/1/1 2//1 3/1\n",
}


@pytest.mark.parametrize("name", MADE)
def test_files_made_here_do_what_the_table_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(MADE[name].encode())
    hold_to(promises()[name], path)
