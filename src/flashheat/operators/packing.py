"""Operators of several meshes become one packed record, and back again, bitwise.

It is separate from the record itself because only batches need it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.operators.container import CACHED_BASES, Operators
from flashheat.operators.csr import CSR


def pack(operators: Sequence[Operators]) -> Operators:
    """Concatenate along the vertex axis; see Operators.pack."""
    parts = [part for item in operators for part in item.split()]
    _check_alike(parts)
    offsets = _offsets([part.n_verts for part in parts], parts[0].device)
    starts = offsets.tolist()
    gradX = _block_diagonal([part.gradX for part in parts], starts)
    packed = Operators(
        mass=torch.cat([part.mass for part in parts]),
        evals=torch.stack([part.evals for part in parts]),
        evecs=torch.cat([part.evecs for part in parts]),
        L=_block_diagonal([part.L for part in parts], starts),
        gradX=gradX,
        gradY=CSR(gradX.indptr, gradX.indices, torch.cat([part.gradY.values for part in parts]), gradX.shape),
        frames=torch.cat([part.frames for part in parts]),
        faces=torch.cat([part.faces + start for part, start in zip(parts, starts, strict=False)]),
        edges=torch.cat([part.edges + start for part, start in zip(parts, starts, strict=False)]),
        k_valid=torch.cat([part.k_valid for part in parts]),
        n_components=torch.cat([part.n_components for part in parts]),
        residuals=torch.stack([part.residuals for part in parts]),
        solver=tuple(name for part in parts for name in part.solver),
        convention=parts[0].convention,
        offsets=offsets,
    )
    for name in CACHED_BASES:
        if all(name in part.__dict__ for part in parts):
            packed.__dict__[name] = torch.cat([part.__dict__[name] for part in parts])
    return packed


def split(operators: Operators) -> list[Operators]:
    """The meshes of a pack; see Operators.split."""
    if operators.offsets is None:
        return [operators]
    bounds = operators.offsets.tolist()
    face_bounds = _element_bounds(operators.faces, operators.offsets)
    edge_bounds = _element_bounds(operators.edges, operators.offsets)
    return [
        _part(
            operators,
            b,
            slice(bounds[b], bounds[b + 1]),
            slice(*face_bounds[b : b + 2]),
            slice(*edge_bounds[b : b + 2]),
        )
        for b in range(operators.batch_size)
    ]


def _part(operators: Operators, b: int, verts: slice, faces: slice, edges: slice) -> Operators:
    """Mesh b of a pack: rows `verts`, and the indices counted from its own first vertex."""
    gradX = _block(operators.gradX, verts)
    entries = slice(int(operators.gradX.indptr[verts.start]), int(operators.gradX.indptr[verts.stop]))
    part = Operators(
        mass=operators.mass[verts],
        evals=operators.evals[b],
        evecs=operators.evecs[verts],
        L=_block(operators.L, verts),
        gradX=gradX,
        gradY=CSR(gradX.indptr, gradX.indices, operators.gradY.values[entries], gradX.shape),
        frames=operators.frames[verts],
        faces=operators.faces[faces] - verts.start,
        edges=operators.edges[edges] - verts.start,
        k_valid=operators.k_valid[b : b + 1],
        n_components=operators.n_components[b : b + 1],
        residuals=operators.residuals[b],
        solver=operators.solver[b : b + 1],
        convention=operators.convention,
    )
    for name in CACHED_BASES:
        if name in operators.__dict__:
            part.__dict__[name] = operators.__dict__[name][verts]
    return part


def _check_alike(parts: Sequence[Operators]) -> None:
    if not parts:
        raise FlashheatError("a pack must hold at least one mesh: got an empty list of operators")
    for name in ("k_eig", "convention", "dtype", "basis_dtype", "device"):
        kinds = sorted({str(getattr(part, name)) for part in parts})
        if len(kinds) > 1:
            raise FlashheatError(
                f"operators packed together must agree in `{name}`: got {', '.join(kinds)}; "
                "compute, truncate or move them alike first"
            )


def _offsets(sizes: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *sizes], device=device).cumsum(0)


def _block_diagonal(blocks: Sequence[CSR], starts: Sequence[int]) -> CSR:
    entries = _offsets([block.nnz for block in blocks], blocks[0].values.device).tolist()
    indptr = [block.indptr[:-1] + entry for block, entry in zip(blocks, entries, strict=False)]
    return CSR(
        torch.cat([*indptr, blocks[-1].indptr[-1:] + entries[-2]]),
        torch.cat([block.indices + start for block, start in zip(blocks, starts, strict=False)]),
        torch.cat([block.values for block in blocks]),
        (starts[-1], starts[-1]),
    )


def _block(matrix: CSR, rows: slice) -> CSR:
    """The square diagonal block of these rows."""
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    entries = slice(int(indptr[0]), int(indptr[-1]))
    n = rows.stop - rows.start
    return CSR(indptr - indptr[0], matrix.indices[entries] - rows.start, matrix.values[entries], (n, n))


def _element_bounds(elements: Tensor, offsets: Tensor) -> list[int]:
    """Where each mesh's faces or edges begin: a pack keeps them in the order of its meshes."""
    mesh = torch.searchsorted(offsets, elements[:, 0].contiguous(), right=True) - 1
    counts = torch.bincount(mesh, minlength=offsets.shape[0] - 1)
    return [0, *counts.cumsum(0).tolist()]
