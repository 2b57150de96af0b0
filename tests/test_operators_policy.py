"""The table of docs/operators.md, row by row: what becomes of a mesh, and that the laws hold for it all the same."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from flashheat import Mesh, Operators, compute_operators
from flashheat.mesh import ellipsoid, grid, icosphere
from flashheat.operators import laplacian
from tests.test_operators_dirty import assert_sound, joined

F64, K = torch.float64, 24
DOCS = Path(__file__).parents[1] / "docs" / "operators.md"
NONE = np.zeros((0, 3), int)


def closed() -> Mesh:
    return ellipsoid((1.0, 0.8, 0.5), 3)


def opened() -> Mesh:
    body = closed()
    return Mesh(body.verts, body.faces[body.verts[body.faces].mean(1)[:, 2] > -0.1])


def with_a_fin() -> Mesh:
    body = closed()
    a, b = body.faces[0, :2]
    tip = 1.5 * body.verts[[a, b]].mean(0)
    return Mesh(np.concatenate([body.verts, [tip]]), np.concatenate([body.faces, [[a, b, body.n_verts]]]))


def bowtie() -> Mesh:
    body = closed()
    turned = np.where(body.faces == 0, 0, body.faces + body.n_verts - 1)  # both share vertex 0
    verts = np.concatenate([body.verts, 2 * body.verts[0] - 1.1 * (body.verts[1:] - body.verts[0]) - body.verts[0]])
    return Mesh(verts, np.concatenate([body.faces, turned]))


def stretched(factor: float) -> Mesh:
    flat = grid(30, 9)
    return Mesh(flat.verts * [1.0, 1 / factor, 1.0], flat.faces)


def with_a_split_edge(height: float) -> Mesh:
    """A face of a sphere with a vertex so near its edge that two faces have hardly any area."""
    body = closed()
    a, b, c = body.faces[0]
    middle = body.verts[[a, b]].mean(0)
    near = middle + height * (body.verts[c] - middle)
    new = body.n_verts
    others = [[a, b, new], [b, c, new], [c, a, new]]
    return Mesh(np.concatenate([body.verts, [near]]), np.concatenate([body.faces[1:], others]))


def with_specks() -> Mesh:
    body, n = closed(), closed().n_verts
    speck = 2 + 1e-20 * np.eye(3)
    return Mesh(np.concatenate([body.verts, speck, [[3.0, 3, 3]]]), np.concatenate([body.faces, [[n, n + 1, n + 2]]]))


def doubled() -> Mesh:
    body = closed()
    return Mesh(
        body.verts, np.concatenate([body.faces, body.faces[:40], body.faces[:40, ::-1], body.faces[:5, [0, 0, 1]]])
    )


def turned_at_random() -> Mesh:
    body = closed()
    turn = np.random.default_rng(0).random((body.n_faces, 1)) < 0.4
    return Mesh(body.verts, np.where(turn, body.faces[:, ::-1], body.faces))


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        mesh: makes one of its kind.
        robust: whether robust_laplacian serves it.
        zeros: eigenvalues that are 0.
        k_valid: eigenpairs that exist, of K = 24.
        moved: relatively at most, an eigenvalue by another scale or order.
    """

    mesh: Callable[[], Mesh]
    robust: bool = False
    zeros: int = 1
    k_valid: int = K
    moved: float = 1e-6


ROWS = {
    "closed": Row(closed),
    "open": Row(opened),
    "an edge of three faces": Row(with_a_fin, robust=True),
    "a vertex of two fans": Row(bowtie, robust=True),
    "several components": Row(
        lambda: joined(closed(), Mesh(0.4 * closed().verts + 3, closed().faces), opened()), zeros=3
    ),
    "slivers, 1e4 times longer than wide": Row(lambda: stretched(3.63e4), moved=3e-5),
    "needles, 1e7 times longer than wide": Row(lambda: with_a_split_edge(1e-7), robust=True),
    "planar": Row(lambda: grid(13, 9)),
    "one triangle": Row(lambda: Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]]), k_valid=3),
    "K = V - 1": Row(lambda: grid(5, 5)),
    "K = V": Row(lambda: grid(6, 4)),
    "K beyond V": Row(lambda: icosphere(0), k_valid=12),
    "faces without area, unused vertices": Row(with_specks),
    "faces twice, corners twice in a face": Row(doubled),
    "faces that disagree in orientation": Row(turned_at_random),
    "a point cloud": Row(lambda: Mesh(closed().verts, NONE), robust=True),
}


@pytest.fixture(scope="module")
def computed() -> dict[str, Operators]:
    return {name: compute_operators(row.mesh(), K, dtype=F64) for name, row in ROWS.items()}


def test_the_table_has_these_rows() -> None:
    table = DOCS.read_text().split("<!-- policy: begin -->")[1].split("<!-- policy: end -->")[0]
    assert re.findall(r"^\| ([^|]+?) \|", table, flags=re.MULTILINE)[1:] == [*ROWS]


@pytest.mark.parametrize("name", ROWS)
def test_what_it_becomes(name: str, computed: dict[str, Operators], monkeypatch: pytest.MonkeyPatch) -> None:
    row, operators, asked = ROWS[name], computed[name], []
    call = laplacian._call
    monkeypatch.setattr(laplacian, "_call", lambda *of, **options: asked.append(of) or call(*of, **options))
    again = compute_operators(row.mesh(), K, dtype=F64)
    assert bool(asked) == row.robust
    assert_sound(operators)
    assert int(operators.k_valid) == row.k_valid
    assert int((operators.evals[: row.k_valid] == 0).sum()) == row.zeros
    assert torch.equal(again.evecs, operators.evecs)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", ROWS)
def test_its_scale_plays_no_part(name: str, scale: float, computed: dict[str, Operators]) -> None:
    mesh = ROWS[name].mesh()
    scaled = compute_operators(Mesh(mesh.verts * scale, mesh.faces), K, dtype=F64)
    tolerance = 1e-6 * float(computed[name].evals.amax())
    torch.testing.assert_close(
        scaled.evals * scale**2, computed[name].evals, rtol=ROWS[name].moved, atol=1e-3 * tolerance
    )


@pytest.mark.parametrize("name", ROWS)
def test_its_order_plays_no_part(name: str, computed: dict[str, Operators]) -> None:
    row, rng = ROWS[name], np.random.default_rng(1)
    mesh = row.mesh()
    order = rng.permutation(mesh.n_verts)
    faces = np.argsort(order)[mesh.faces][rng.permutation(mesh.n_faces)]
    faces = (
        np.stack([np.roll(face, shift) for face, shift in zip(faces, rng.integers(3, size=len(faces)), strict=True)])
        if len(faces)
        else faces
    )
    other = compute_operators(Mesh(mesh.verts[order], faces), K, dtype=F64)
    here, there = (of.evals[row.zeros : row.k_valid] for of in (computed[name], other))
    assert ((there - here).abs() / here).max() < row.moved


def test_normals_serve_a_cloud() -> None:
    body = closed()
    points = Mesh(body.verts, NONE)
    given = compute_operators(points, K, normals=body.verts / np.array([1.0, 0.8, 0.5]) ** 2, dtype=F64)
    outward = given.frames[:, 2] * torch.from_numpy(body.verts / np.array([1.0, 0.8, 0.5]) ** 2)
    assert (outward.sum(1) > 0).all()
    assert_sound(given)
