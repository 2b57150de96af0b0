"""A mesh becomes Operators: geometry, Laplacian, frames, gradients and spectrum, in this order.

It is separate so that `import flashheat` loads none of the numerical packages that this needs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import FlashheatError, MeshError, check_count
from flashheat.operators.container import Operators
from flashheat.operators.csr import CSR
from flashheat.operators.frames import tangent_frames
from flashheat.operators.geometry import Geometry, unique_edges, usable_geometry
from flashheat.operators.gradient import gradients
from flashheat.operators.laplacian import laplacian_and_mass
from flashheat.operators.spectrum import lowest_eigenpairs

if TYPE_CHECKING:
    import scipy.sparse

logger = logging.getLogger("flashheat")

CONVENTIONS = ("native", "diffusion_net")


class HasGeometry(Protocol):
    """Anything with vertices and faces, such as flashheat.mesh.Mesh."""

    @property
    def verts(self) -> np.ndarray:
        """[V, 3]."""

    @property
    def faces(self) -> np.ndarray:
        """[F, 3]; F = 0 for a point cloud."""


def compute_operators(
    mesh: HasGeometry,
    k_eig: int = 128,
    convention: str = "native",
    frames: np.ndarray | Tensor | None = None,
    normals: np.ndarray | Tensor | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Operators:
    """Compute mass, L, the lowest eigenpairs, tangent frames and gradients of a mesh, in float64, once.

    Args:
        mesh: a Mesh (a point cloud when it has no faces).
        k_eig: K, how many eigenpairs.
        convention: "native" is scale-free; "diffusion_net" reproduces the original's constants, for published weights.
        frames: [V, 3, 3] rows tangent X, tangent Y, normal, when they are known.
        normals: [V, 3] of any length, when they are known and frames are not.
        device: where the eigenpairs are found and the result goes; a CUDA device needs no sparse solver on the CPU.
        dtype: of the result.

    Raises:
        MeshError: when the mesh has no usable geometry, or a scale that `dtype` cannot hold.
        FlashheatError: for a bad option.
        MissingExtraError: when the mesh needs robust_laplacian and it is not installed.

    Bitwise repeatable on one machine with one number of BLAS threads (OMP_NUM_THREADS when Python starts); with
    another the eigenvectors differ by rounding, and those of equal eigenvalues may turn among themselves.

    Source: Sharp et al., "DiffusionNet", 2022 (arXiv 2012.00888), section 3.
    """
    if convention not in CONVENTIONS:
        raise FlashheatError(f"`convention` must be one of {', '.join(CONVENTIONS)}: got {convention!r}")
    check_count("k_eig", k_eig)
    geometry = usable_geometry(mesh.verts, mesh.faces, convention)
    L, mass = laplacian_and_mass(geometry, convention)
    labels = _components(geometry, L)
    axes = _frames(geometry, frames, normals)
    gradX, gradY = gradients(geometry, axes, convention)
    spectrum = lowest_eigenpairs(L, mass, geometry.verts, labels, k_eig, convention, device or "cpu")
    faces = torch.from_numpy(np.array(mesh.faces, dtype=np.int64).reshape(-1, 3))
    operators = Operators(
        mass=_scaled(torch.from_numpy(mass), geometry.scale**2, dtype, "mass"),
        evals=_scaled(spectrum.evals, geometry.scale**-2, dtype, "evals"),
        evecs=_scaled(spectrum.evecs, 1 / geometry.scale, dtype, "evecs"),
        L=CSR.from_scipy(L),
        gradX=gradX,
        gradY=gradY,
        frames=torch.from_numpy(axes),
        faces=faces,
        edges=torch.from_numpy(unique_edges(faces.numpy())),
        k_valid=torch.tensor([spectrum.k_valid]),
        n_components=torch.tensor([len(np.unique(labels[mass > 0]))]),
        residuals=spectrum.residuals,
        solver=(spectrum.solver,),
        convention=convention,
    )
    return operators.to(device, dtype=dtype)


def _components(geometry: Geometry, L: scipy.sparse.csr_array) -> np.ndarray:
    """[V] labels of connected components: vertices that share a face, or an entry of L where there are no faces."""
    import scipy.sparse
    from scipy.sparse.csgraph import connected_components

    if len(geometry.faces):
        V, edges = len(geometry.verts), unique_edges(geometry.faces)
        L = scipy.sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(V, V)).tocsr()
    return connected_components(L, directed=False)[1]


def _scaled(values: Tensor, factor: float, dtype: torch.dtype, name: str) -> Tensor:
    """Values in the mesh's own unit of length.

    Raises:
        MeshError: when the largest of them overflows or vanishes in `dtype`.
    """
    scaled = values * factor
    largest, limits = float(scaled.abs().max()), torch.finfo(dtype)
    if values.any() and not limits.tiny <= largest <= limits.max:
        raise MeshError(
            f"a mesh's scale must let `{name}` fit {dtype}: the largest is {largest:.1e}; "
            "normalise the mesh (Mesh.normalise), or ask for float64"
        )
    return scaled


def _frames(geometry: Geometry, frames: np.ndarray | Tensor | None, normals: np.ndarray | Tensor | None) -> np.ndarray:
    V = len(geometry.verts)
    if frames is not None:
        return _array("frames", frames, (V, 3, 3))
    if normals is not None:
        given = _array("normals", normals, (V, 3))
        return tangent_frames(given / np.maximum(np.linalg.norm(given, axis=1, keepdims=True), np.finfo(float).tiny))
    return tangent_frames(geometry.normals)


def _array(name: str, values: np.ndarray | Tensor, shape: tuple[int, ...]) -> np.ndarray:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    array = np.array(array, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise MeshError(f"`{name}` must be finite and have shape {list(shape)}: got {list(array.shape)}")
    return array
