"""Usable geometry and tangent frames become each vertex's tangent gradient, by least squares over its edges.

It is separate from the Laplacian because it follows the embedded edges, where the robust Laplacian flips them.
"""

from __future__ import annotations

import numpy as np
import torch

from flashheat.operators.csr import CSR
from flashheat.operators.geometry import Geometry, unique_edges

UPSTREAM_REGULARISATION = 1e-5
THINNEST = 1e-6  # natively, a direction that holds less than this share of a one-ring's squared edges is damped


def gradients(geometry: Geometry, frames: np.ndarray, convention: str) -> tuple[CSR, CSR]:
    """`gradX, gradY [V, V]`, unit l^-1: `g_v = G_v^-1 sum_j e_vj (x_j - x_v)` with `G_v = sum_j e_vj e_vj^T`.

    e_vj is the edge from v to j projected on v's tangent plane; j runs over v's one-ring, or a cloud's 30 nearest.
    "diffusion_net" adds 1e-5 to G's diagonal. "native" raises G's eigenvalues to at least 1e-6 of its trace, so that
    gradients of linear functions are exact on flat patches unless a one-ring is 1000 times longer than wide.

    Returns:
        Two matrices that share one pattern, with the diagonal; rows of inactive vertices hold zeros.
    """
    import scipy.sparse

    V = len(geometry.verts)
    tail, tip = gradient_edges(geometry)
    edges = np.einsum("eic,ec->ei", frames[tail, :2], geometry.verts[tip] - geometry.verts[tail])
    G = np.stack([np.bincount(tail, edges[:, i] * edges[:, j], V) for i in (0, 1) for j in (0, 1)], axis=1)
    weights = np.einsum("eij,ej->ei", _regularised_inverse(G.reshape(V, 2, 2), convention)[tail], edges)
    diagonal = np.stack([-np.bincount(tail, weights[:, i], V) for i in (0, 1)], axis=1)
    rows, columns = np.concatenate([tail, np.arange(V)]), np.concatenate([tip, np.arange(V)])
    values = np.concatenate([weights, diagonal]) / geometry.scale
    both = scipy.sparse.coo_array((values[:, 0] + 1j * values[:, 1], (rows, columns)), shape=(V, V)).tocsr()
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (both.indptr, both.indices))
    X, Y = (torch.from_numpy(np.ascontiguousarray(part)) for part in (both.data.real, both.data.imag))
    return CSR(indptr, indices, X, (V, V)), CSR(indptr, indices, Y, (V, V))


def gradient_edges(geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """(from, to) of the directed edges between active vertices that gradients are fitted to."""
    if geometry.neighbours is None:
        low, high = unique_edges(geometry.faces).T
        return np.concatenate([low, high]), np.concatenate([high, low])
    tail, tip = np.repeat(np.arange(len(geometry.verts)), geometry.neighbours.shape[1]), geometry.neighbours.ravel()
    usable = geometry.active[tail] & geometry.active[tip]
    return tail[usable], tip[usable]


def _regularised_inverse(G: np.ndarray, convention: str) -> np.ndarray:
    """[V, 2, 2] the inverse of each vertex's 2 x 2 system, kept from blowing up; zero where there are no edges."""
    values, vectors = np.linalg.eigh(G)
    if convention == "diffusion_net":
        values = np.maximum(values, 0) + UPSTREAM_REGULARISATION
    else:
        values = np.maximum(values, THINNEST * values.sum(axis=1, keepdims=True))
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    return np.einsum("vij,vj,vkj->vik", vectors, inverse, vectors)
