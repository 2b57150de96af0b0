"""A mesh becomes Operators: geometry, Laplacian, frames, gradients and spectrum, in this order.

It is separate so that `import flashheat` loads none of the numerical packages that this needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flashheat.devices import check_device
from flashheat.errors import FlashheatError, MeshError, check_count
from flashheat.operators.container import Operators, check_dtype
from flashheat.operators.frames import tangent_frames
from flashheat.operators.geometry import unique_edges, usable_geometry
from flashheat.operators.gradient import gradients
from flashheat.operators.laplacian import laplacian_and_mass
from flashheat.operators.segments import connected, reduced
from flashheat.operators.spectrum import lowest_eigenpairs

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
        device: where all is computed and the result stays; None: the CPU. What passes by the CPU all the same is in
            docs/operators.md.
        dtype: of the result.

    Raises:
        MeshError: when the mesh has no usable geometry, or a scale that `dtype` cannot hold.
        FlashheatError: for a bad option.
        MissingExtraError: when the mesh needs robust_laplacian and it is not installed.

    Bitwise repeatable on one machine with one number of BLAS threads (OMP_NUM_THREADS when Python starts); with
    another the eigenvectors differ by rounding.

    Source: Sharp et al., "DiffusionNet", 2022 (arXiv 2012.00888), section 3.
    """
    on = _checked(k_eig, convention, device, dtype)
    given = _given(frames, normals, len(np.asarray(mesh.verts)))
    return _computed([mesh], k_eig, convention, None if given is None else given.to(on), on, dtype)


def compute_operators_of_many(
    meshes: Iterable[HasGeometry],
    k_eig: int = 128,
    convention: str = "native",
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Operators]:
    """`compute_operators` of each mesh, all at once: on a GPU many times faster than one by one.

    Eigenvectors differ by rounding from those of a mesh alone. Arguments and errors are those of `compute_operators`;
    the line of an error begins with the number of the mesh, from 0.
    """
    on = _checked(k_eig, convention, device, dtype)
    if hasattr(meshes, "verts"):
        raise FlashheatError("`meshes` must be several: got one mesh; call compute_operators")
    meshes = list(meshes)
    with_faces = [number for number, mesh in enumerate(meshes) if len(mesh.faces)]
    clouds = [[number] for number, mesh in enumerate(meshes) if not len(mesh.faces)]
    found: dict[int, Operators] = {}
    for numbers in [with_faces, *clouds] if with_faces else clouds:
        try:
            packed = _computed([meshes[number] for number in numbers], k_eig, convention, None, on, dtype)
        except MeshError as error:
            raise MeshError(f"mesh {numbers[error.which or 0]}: {error}") from error
        found |= zip(numbers, packed.split(), strict=True)
    return [found[number] for number in range(len(meshes))]


def _checked(k_eig: int, convention: str, device: torch.device | str | None, dtype: torch.dtype) -> torch.device:
    """The device, when all are good."""
    if convention not in CONVENTIONS:
        raise FlashheatError(f"`convention` must be one of {', '.join(CONVENTIONS)}: got {convention!r}")
    check_count("k_eig", k_eig)
    check_dtype("dtype", dtype)
    on = device or "cpu"
    check_device(on)
    return torch.device(on)


def _computed(
    meshes: Sequence[HasGeometry],
    k_eig: int,
    convention: str,
    frames: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Operators:
    """Of one mesh, or packed of several."""
    all_verts = [_verts(mesh.verts, which) for which, mesh in enumerate(meshes)]
    sizes = [len(of) for of in all_verts]
    offsets = np.cumsum([0, *sizes])
    all_faces = [_faces(mesh.faces, sizes[which], which) + offsets[which] for which, mesh in enumerate(meshes)]
    faces = torch.from_numpy(np.concatenate(all_faces)).to(device)
    verts = torch.from_numpy(np.concatenate(all_verts)).to(device)
    geometry = usable_geometry(verts, faces, sizes, convention)
    L, mass = laplacian_and_mass(geometry, convention)
    frames = tangent_frames(geometry.normals) if frames is None else frames
    gradX, gradY = gradients(geometry, frames, convention)
    ends = (geometry.faces, geometry.faces.roll(-1, 1)) if len(geometry.faces) else (L.rows(), L.indices)
    labels = connected(ends[0].reshape(-1), ends[1].reshape(-1), len(mass))
    spectrum = lowest_eigenpairs(L, mass, geometry.verts, labels, geometry.mesh, k_eig, convention)
    scale, packed = geometry.scale[geometry.mesh], len(meshes) > 1
    mass, evecs = mass * scale**2, spectrum.evecs / scale[:, None]
    evals, residuals = spectrum.evals * geometry.scale[:, None] ** -2, spectrum.residuals
    for name, of_vertex in (("mass", mass), ("evecs", evecs.abs().amax(1))):
        _require_fitting(reduced(of_vertex, geometry.mesh, len(meshes), "max"), dtype, name)
    _require_fitting(evals.amax(1), dtype, "evals")
    return Operators(
        mass=mass,
        evals=evals if packed else evals[0],
        evecs=evecs,
        L=L,
        gradX=gradX,
        gradY=gradY,
        frames=frames,
        faces=faces,
        edges=unique_edges(faces, len(mass)),
        k_valid=spectrum.k_valid,
        n_components=spectrum.n_components,
        residuals=residuals if packed else residuals[0],
        solver=spectrum.solver,
        convention=convention,
        offsets=torch.from_numpy(offsets).to(device) if packed else None,
    ).to(dtype)


def _verts(verts: np.ndarray, which: int) -> np.ndarray:
    """As float64.

    Raises:
        MeshError: unless there are vertices, with three finite coordinates each.
    """
    verts = np.asarray(verts)
    if verts.ndim != 2 or verts.shape[1] != 3 or len(verts) == 0 or verts.dtype.kind not in "fiu":
        raise MeshError(f"`verts` must be numbers [V, 3], V > 0: got {verts.dtype} {list(verts.shape)}", which)
    finite = np.isfinite(verts).all(1)
    if not finite.all():
        raise MeshError(f"`verts` must be finite: got {verts[~finite][0].tolist()} at vertex {finite.argmin()}", which)
    return verts.astype(np.float64, copy=False)


def _faces(faces: np.ndarray, n_verts: int, which: int) -> np.ndarray:
    """As int64.

    Raises:
        MeshError: unless they are triangles of the mesh's own vertices (in a pack others would be another mesh's).
    """
    faces = np.asarray(faces)
    if faces.size == 0:
        return np.zeros((0, 3), np.int64)
    if faces.ndim != 2 or faces.shape[1] != 3 or faces.dtype.kind not in "iu":
        raise MeshError(
            f"`faces` must be whole numbers [F, 3]: got {faces.dtype} {list(faces.shape)}; triangulate other polygons",
            which,
        )
    wrong = (faces < 0) | (faces >= n_verts)
    if wrong.any():
        raise MeshError(f"faces must be of the mesh's vertices, 0 to {n_verts - 1}: got {faces[wrong][0]}", which)
    return faces.astype(np.int64, copy=False)


def _require_fitting(largest: Tensor, dtype: torch.dtype, name: str) -> None:
    """Raise a MeshError when the largest value of a mesh, of those [B] in its own unit of length, leaves the dtype."""
    limits = torch.finfo(dtype)
    wrong = (largest > 0) & ((largest < limits.tiny) | (largest > limits.max))
    if bool(wrong.any()):
        raise MeshError(
            f"a mesh's scale must let `{name}` fit {dtype}: the largest is {float(largest[wrong][0]):.1e}; "
            "normalise the mesh (Mesh.normalise), or ask for float64",
            which=int(wrong.nonzero()[0]),
        )


def _given(frames: np.ndarray | Tensor | None, normals: np.ndarray | Tensor | None, V: int) -> Tensor | None:
    """Frames that the caller gave, or whose normals."""
    if frames is not None:
        return _array("frames", frames, (V, 3, 3))
    if normals is None:
        return None
    given = _array("normals", normals, (V, 3))
    length = torch.linalg.vector_norm(given, dim=1, keepdim=True)
    return tangent_frames(given / length.clamp_min(torch.finfo(given.dtype).tiny))


def _array(name: str, values: np.ndarray | Tensor, shape: tuple[int, ...]) -> Tensor:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    array = np.array(array, dtype=np.float64)
    if array.shape != shape:
        raise MeshError(f"`{name}` must have shape {list(shape)}, a row a vertex: got {list(array.shape)}")
    wrong = ~np.isfinite(array).reshape(len(array), -1).all(1)
    if wrong.any():
        raise MeshError(f"`{name}` must be finite: got {array[wrong][0].tolist()} at vertex {wrong.argmax()}")
    return torch.from_numpy(array)
