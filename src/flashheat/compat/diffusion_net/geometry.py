"""The original's precompute functions: tuples of tensors, in its order, with its constants.

They are separate because scripts say `diffusion_net.geometry.get_operators`. Everything is computed by
`flashheat.operators` with `convention="diffusion_net"`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashheat.compat.diffusion_net.utils import toNP
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh
from flashheat.operators import Operators, OperatorStore, compute_operators, hks

OperatorTuple = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def get_operators(
    verts: Tensor,
    faces: Tensor,
    k_eig: int = 128,
    op_cache_dir: str | None = None,
    normals: Tensor | None = None,
    overwrite_cache: bool = False,
) -> OperatorTuple:
    """`(frames, mass, L, evals, evecs, gradX, gradY)` of a mesh, or of a point cloud where `faces` is empty.

    Args:
        verts: `[V, 3]`; its device and dtype are those of the result.
        faces: `[F, 3]`.
        k_eig: number of eigenpairs.
        op_cache_dir: folder of an `OperatorStore`; None computes anew.
        normals: `[V, 3]` unit normals instead of those of the faces.
        overwrite_cache: compute anew and replace what the folder holds.

    Returns:
        Dense tensors, and `L`, `gradX`, `gradY` as coalesced sparse COO.
    """
    mesh = Mesh(toNP(verts), toNP(faces))
    if op_cache_dir is None:
        operators = compute_operators(mesh, k_eig, "diffusion_net", normals=normals, dtype=verts.dtype)
    else:
        store = OperatorStore(op_cache_dir)
        if overwrite_cache:
            store.path(mesh, k_eig, "diffusion_net", normals=normals, dtype=verts.dtype).unlink(missing_ok=True)
        operators = store.get(mesh, k_eig, "diffusion_net", normals=normals, dtype=verts.dtype)
    return _as_tuple(operators.to(verts.device))


def get_all_operators(
    verts_list: Sequence[Tensor],
    faces_list: Sequence[Tensor],
    k_eig: int = 128,
    op_cache_dir: str | None = None,
    normals: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], ...]:
    """`get_operators` of each mesh, as seven lists."""
    normals_list = [None] * len(verts_list) if normals is None else normals
    each = [
        get_operators(verts, faces, k_eig, op_cache_dir, n)
        for verts, faces, n in zip(verts_list, faces_list, normals_list, strict=True)
    ]
    return tuple([operators[i] for operators in each] for i in range(7))


def compute_hks_autoscale(evals: Tensor, evecs: Tensor, count: int) -> Tensor:
    """Heat kernel signatures `[V, count]` (or `[B, V, count]`) at times from 0.01 to 1, evenly in the logarithm."""
    scales = torch.logspace(-2, 0, count, dtype=evals.dtype, device=evals.device)
    if evals.ndim == 2:
        return torch.stack([hks(e, v, scales) for e, v in zip(evals, evecs, strict=True)])
    return hks(evals, evecs, scales)


def normalize_positions(
    pos: Tensor, faces: Tensor | None = None, method: str = "mean", scale_method: str = "max_rad"
) -> Tensor:
    """Positions moved to a centre and scaled to a unit size.

    Args:
        pos: `[..., V, 3]`.
        faces: `[F, 3]`, needed where `scale_method` is "area".
        method: the centre: "mean" of the positions, or that of their bounding box, "bbox".
        scale_method: "max_rad": the largest distance from the centre becomes 1; "area": the surface area does.
    """
    if method == "mean":
        centre = pos.mean(dim=-2, keepdim=True)
    elif method == "bbox":
        centre = (pos.amin(dim=-2, keepdim=True) + pos.amax(dim=-2, keepdim=True)) / 2
    else:
        raise FlashheatError(f'`method` must be "mean" or "bbox": got {method!r}.')
    pos = pos - centre
    if scale_method == "max_rad":
        return pos / pos.norm(dim=-1).amax(dim=-1)[..., None, None]
    if scale_method == "area" and faces is not None:
        corners = pos[..., faces, :]
        cross = torch.linalg.cross(
            corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :], dim=-1
        )
        return pos / (cross.norm(dim=-1).sum(dim=-1) / 2).sqrt()[..., None, None]
    raise FlashheatError(f'`scale_method` must be "max_rad", or "area" with `faces`: got {scale_method!r}.')


def _as_tuple(operators: Operators) -> OperatorTuple:
    o = operators
    L, gradX, gradY = (matrix.to_torch().to_sparse_coo().coalesce() for matrix in (o.L, o.gradX, o.gradY))
    return o.frames, o.mass, L, o.evals, o.evecs, gradX, gradY
