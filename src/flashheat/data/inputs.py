"""A normalised mesh and its operators become the numbers at each vertex that a network reads.

It is separate because training and prediction must make them in exactly the same way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh
from flashheat.operators import Operators, hks_autoscale

N_CHANNELS = {"xyz": 3, "hks": 16, "flow": 2}


def parse_inputs(text: str) -> tuple[str, ...]:
    """Names joined by "+", such as "xyz+hks".

    Raises:
        FlashheatError: an unknown or repeated name.
    """
    names = tuple(text.split("+"))
    if not set(names) <= set(N_CHANNELS) or len(set(names)) != len(names):
        raise FlashheatError(f"inputs must be some of {', '.join(N_CHANNELS)}, joined by +; got {text!r}")
    return names


def n_channels(names: tuple[str, ...]) -> int:
    """How many numbers at a vertex these inputs are."""
    return sum(N_CHANNELS[name] for name in names)


def columns_of(name: str, names: tuple[str, ...]) -> slice | None:
    """Where one input lies among the columns of all; None when it is not among them."""
    if name not in names:
        return None
    start = n_channels(names[: names.index(name)])
    return slice(start, start + N_CHANNELS[name])


def make_inputs(names: tuple[str, ...], mesh: Mesh, operators: Operators, stream: np.ndarray | None) -> Tensor:
    """The inputs side by side, [V, C] float32.

        xyz:  the normalised positions
        hks:  heat kernel signatures at 16 scales
        flow: n.U and x.U, with the stream U made a unit vector

    Args:
        names: which, in this order.
        mesh: normalised (`Mesh.normalise`).
        operators: of this mesh.
        stream: [3] in the mesh's coordinates; needed for "flow".

    Raises:
        FlashheatError: no stream where one is needed, a point cloud with "flow", NaN or infinity (named).
    """
    makers = {
        "xyz": lambda: torch.from_numpy(mesh.verts),
        "hks": lambda: hks_autoscale(operators, N_CHANNELS["hks"]),
        "flow": lambda: _flow(mesh, operators, stream),
    }
    parts = []
    for name in names:
        part = makers[name]().to(torch.float32)
        check_finite(part, f"input {name} of {mesh.name or 'the mesh'}")
        parts.append(part)
    return torch.cat(parts, dim=1)


def check_finite(values: Tensor, what: str) -> None:
    """Raise a FlashheatError that names `what` where a value is NaN or infinite."""
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
    if bad.any():
        first = int(bad.int().argmax())
        raise FlashheatError(
            f"{what} must be finite; {int(bad.sum())} of {len(values)} rows are not, the first is row {first}"
        )


def outward_normals(mesh: Mesh, operators: Operators) -> Tensor:
    """Unit vertex normals [V, 3] of the operators' frames, turned so that the volume they enclose is positive.

    A vertex without faces gets 0. A sheet, which encloses nothing, keeps the side its faces have.
    """
    normals = operators.frames[:, 2]
    a, b, c = (mesh.verts[mesh.faces[:, corner]] for corner in range(3))
    volume = np.einsum("fi,fi->", a, np.cross(b, c)) / 6
    return -normals if volume < -1e-6 * mesh.area**1.5 else normals


def _flow(mesh: Mesh, operators: Operators, stream: np.ndarray | None) -> Tensor:
    name = mesh.name or "the mesh"
    if stream is None:
        raise FlashheatError(f"the inputs flow need a stream direction for {name}; give one, such as 1 0 0")
    if mesh.is_point_cloud:
        raise FlashheatError(f"the inputs flow need faces, to tell the outside; {name} is a point cloud")
    U = torch.from_numpy(unit_stream(stream))
    n = outward_normals(mesh, operators).double()
    return torch.stack([n @ U, torch.from_numpy(mesh.verts) @ U], dim=1)


def unit_stream(stream: np.ndarray) -> np.ndarray:
    """The direction of a stream, [3], of length 1.

    Raises:
        FlashheatError: not three finite numbers, or all of them 0.
    """
    U = np.asarray(stream, dtype=np.float64)
    if U.shape != (3,) or not np.isfinite(U).all() or not U.any():
        raise FlashheatError(f"a stream must be three finite numbers, not all 0; got {stream}")
    U = U / np.abs(U).max()  # so that no square leaves the range
    return U / np.linalg.norm(U)
