"""From values at vertices to values at the elements that a task asks for.

It is separate because every network of the package ends with it.
"""

from typing import TYPE_CHECKING, Literal

from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.ops import to_basis

if TYPE_CHECKING:
    from flashheat.operators import Operators

OutputsAt = Literal["vertices", "faces", "edges", "mesh"]


def check_outputs_at(outputs_at: str) -> None:
    """Raise unless `outputs_at` names an element."""
    if outputs_at not in ("vertices", "faces", "edges", "mesh"):
        raise ValueError(f'`outputs_at` must be "vertices", "faces", "edges" or "mesh": got {outputs_at!r}.')


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


def check_input(x: Tensor, operators: "Operators", in_channels: int) -> None:
    """Raise unless `x` is `[V, in_channels]` for the operators' V."""
    if x.ndim != 2 or x.shape[1] != in_channels:
        raise FlashheatError(f"`x` must be [V, {in_channels}], the network's in_channels: got x {list(x.shape)}.")
    if x.shape[0] != operators.mass.shape[0]:
        raise FlashheatError(
            f"`x` must have one row per vertex of `operators`: got x {list(x.shape)}, operators of "
            f"{operators.mass.shape[0]} vertices. Were the operators computed for another mesh?"
        )
