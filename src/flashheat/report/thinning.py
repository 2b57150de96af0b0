"""A mesh too large to turn smoothly in a browser becomes a smaller one for the picture; figures keep the whole mesh.

It is separate because it is the one place where the page shows less than what was computed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashheat.report.view import MeshView

MAX_DRAWN = 60_000


def thinned(view: MeshView, limit: int = MAX_DRAWN) -> MeshView:
    """The view itself, or where it has more than `limit` vertices one with a vertex for each cell of a fine grid.

    The first vertex in a cell stands for the others, with its position and value; triangles within a cell vanish.
    """
    if len(view.verts) <= limit:
        return view
    used = np.unique(view.faces) if len(view.faces) else np.arange(len(view.verts))
    first, cell = _grid(view.verts[used], limit)
    new_index = np.zeros(len(view.verts), dtype=np.int64)
    new_index[used] = cell
    faces = new_index[view.faces]
    kept = np.flatnonzero((faces != np.roll(faces, 1, axis=1)).all(axis=1))
    rows = used[first] if view.at == "vertices" else kept
    truth = None if view.truth is None else view.truth[rows]
    return replace(
        view, verts=view.verts[used[first]], faces=faces[kept], truth=truth, prediction=view.prediction[rows]
    )


def _grid(points: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The finest grid (to a quarter) of at most `limit` used cells: each cell's first point, and each point's cell."""
    low, extents = points.min(axis=0), np.ptp(points, axis=0)
    size = np.linalg.norm(extents) / (20 * np.sqrt(limit))
    while True:
        x, y, z = np.floor((points - low) / size).astype(np.int64).T
        nx, ny, _ = np.floor(extents / size).astype(np.int64) + 1
        _, first, cell = np.unique(x + nx * (y + ny * z), return_index=True, return_inverse=True)
        if len(first) <= limit:
            return first, cell
        size *= 1.25
