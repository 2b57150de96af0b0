"""From values at vertices to values at the elements that a task asks for.

It is separate because every network of the package ends with it.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from flashheat.errors import FlashheatError, check_count
from flashheat.ops import to_basis

if TYPE_CHECKING:
    from flashheat.operators import Operators

OutputsAt = Literal["vertices", "faces", "edges", "mesh"]


def check_options(outputs_at: str, **counts: int) -> None:
    """Raise unless `outputs_at` names an element and every count is one."""
    for name, count in counts.items():
        check_count(name, count)
    if outputs_at not in ("vertices", "faces", "edges", "mesh"):
        raise FlashheatError(f'`outputs_at` must be "vertices", "faces", "edges" or "mesh": got {outputs_at!r}.')


def at_elements(x: Tensor, operators: "Operators", outputs_at: OutputsAt) -> Tensor:
    """Values `x [V, C]` at vertices, as means over elements.

    Returns:
        "vertices": `x`; "faces": the mean of a face's corners `[F, C]`; "edges": of an edge's ends `[E, C]`;
        "mesh": the area-weighted mean of a mesh, `[C]`, or `[B, C]` for packed operators.
    """
    if outputs_at == "faces":
        return x[operators.faces].mean(dim=1)
    if outputs_at == "edges":
        return x[operators.edges].mean(dim=1)
    if outputs_at == "mesh":
        ones = operators.mass.new_ones(x.shape[0], 1)
        integral = to_basis(x, operators.mass, ones, operators.offsets)
        area = to_basis(ones, operators.mass, ones, operators.offsets)
        return (integral / area).squeeze(-2).to(x.dtype)
    return x


def check_input(x: Tensor, operators: "Operators", first: nn.Linear) -> None:
    """Raise unless `x` is `[V, C]` for the operators' V, and what the network's first layer takes."""
    mass = getattr(operators, "mass", None)
    if not isinstance(x, Tensor):
        raise FlashheatError(f"`x` must be a torch.Tensor: got {type(x).__name__}. Make it one, by torch.as_tensor(x).")
    if not isinstance(mass, Tensor):
        raise FlashheatError(
            f"`operators` must be those of the mesh: got {type(operators).__name__}. "
            "Make them, by flashheat.compute_operators(mesh)."
        )
    if x.ndim != 2 or x.shape[1] != first.in_features:
        raise FlashheatError(f"`x` must be [V, {first.in_features}], the network's in_channels: got x {list(x.shape)}.")
    if x.shape[0] != mass.shape[0]:
        raise FlashheatError(
            f"`x` must have one row per vertex of `operators`: got x {list(x.shape)}, operators of "
            f"{mass.shape[0]} vertices. Were the operators computed for another mesh?"
        )
    if isinstance(first.weight, Tensor):  # a quantised layer has a method there, and takes what it takes
        _check_weight(x, first.weight)


def _check_weight(x: Tensor, weight: Tensor) -> None:
    if x.device != weight.device:
        raise FlashheatError(
            f"`x` and the network must be on one device: got x on {x.device}, weights on {weight.device}. "
            "Move one, by x.to(device) or net.to(device)."
        )
    # Autocast casts any real dtype but float64.
    casts = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, weight.dtype)
    if not x.is_floating_point() or (x.dtype != weight.dtype and not casts):
        raise FlashheatError(
            f"`x` must have the dtype of the network's weights, {weight.dtype}: got {x.dtype}. "
            f"Convert it, by x.to({weight.dtype}), or the network, by net.to(dtype)."
        )
