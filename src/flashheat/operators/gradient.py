"""Usable geometry and tangent frames become each vertex's tangent gradient, by least squares over its edges.

It is separate from the Laplacian because it follows the embedded edges, where the robust Laplacian flips them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashheat.operators.csr import CSR
from flashheat.operators.geometry import Geometry, unique_edges
from flashheat.operators.segments import summed

UPSTREAM_REGULARISATION = 1e-5
THINNEST = 1e-6  # natively, a direction that holds less than this share of a one-ring's squared edges is damped


def gradients(geometry: Geometry, frames: Tensor, convention: str) -> tuple[CSR, CSR]:
    """`gradX, gradY [V, V]`, unit l^-1: `g_v = G_v^-1 sum_j e_vj (x_j - x_v)` with `G_v = sum_j e_vj e_vj^T`.

    e_vj is the edge from v to j projected on v's tangent plane; j runs over v's one-ring, or a cloud's 30 nearest.
    "diffusion_net" adds 1e-5 to G's diagonal. "native" raises G's eigenvalues to at least 1e-6 of its trace, so that
    gradients of linear functions are exact on flat patches unless a one-ring is 1000 times longer than wide.

    Returns:
        Two matrices that share one pattern, with the diagonal; rows of inactive vertices hold zeros.
    """
    V = len(geometry.verts)
    tail, tip = gradient_edges(geometry)
    edges = ((geometry.verts[tip] - geometry.verts[tail])[:, None] * frames[tail, :2]).sum(2)
    x, y = edges.unbind(1)
    xx, xy, yy = _regularised_inverse(summed(tail, torch.stack([x * x, x * y, y * y], 1), V), convention)[tail].unbind(
        1
    )
    weights = torch.stack([xx * x + xy * y, xy * x + yy * y], 1)
    itself = torch.arange(V, device=tail.device)
    rows, columns = torch.cat([tail, itself]), torch.cat([tip, itself])
    values = torch.cat([weights, -summed(tail, weights, V)]) / geometry.scale[geometry.mesh[rows], None]
    X, Y = CSR.from_entries(rows, columns, values.unbind(1), V)
    return X, Y


def gradient_edges(geometry: Geometry) -> tuple[Tensor, Tensor]:
    """(from, to) of the directed edges between active vertices that gradients are fitted to."""
    if geometry.neighbours is None:
        low, high = unique_edges(geometry.faces, len(geometry.verts)).unbind(1)
        return torch.cat([low, high]), torch.cat([high, low])
    tip = geometry.neighbours.reshape(-1)
    tail = torch.arange(len(geometry.verts), device=tip.device).repeat_interleave(geometry.neighbours.shape[1])
    usable = geometry.active[tail] & geometry.active[tip]
    return tail[usable], tip[usable]


def _regularised_inverse(G: Tensor, convention: str) -> Tensor:
    """[V, 3] the inverse of each vertex's 2 x 2 system, kept from blowing up; zero where there are no edges.

    Args:
        G: [V, 3] its entries xx, xy, yy; the same of the inverse comes back.
        convention: "native" or "diffusion_net".
    """
    xx, xy, yy = G.unbind(1)
    spread = torch.hypot((xx - yy) / 2, xy)
    large = (xx + yy) / 2 + spread
    small = torch.where(large > 0, (xx * yy - xy * xy) / large, 0.0).clamp_min(0)
    # Of its two expressions, the eigenvector of the large one whose difference does not cancel.
    x_axis = xx >= yy
    a, b = torch.where(x_axis, large - yy, xy), torch.where(x_axis, xy, large - xx)
    length = torch.hypot(a, b)
    a, b = (torch.where(length > 0, of / length, axis) for of, axis in ((a, 1.0), (b, 0.0)))
    if convention == "diffusion_net":
        large, small = large + UPSTREAM_REGULARISATION, small + UPSTREAM_REGULARISATION
    else:
        large, small = (of.maximum(THINNEST * (xx + yy)) for of in (large, small))
    along, across = (torch.where(of > 0, 1 / of, 0.0) for of in (large, small))
    return torch.stack([along * a * a + across * b * b, (along - across) * a * b, along * b * b + across * a * a], 1)
