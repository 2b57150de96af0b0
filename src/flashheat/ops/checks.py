"""Checks of the arguments that every op shares; each error names both arguments that disagree.

They are separate so that an op's own file shows its equation first. Only shapes, dtypes and devices are read
(never values), so nothing here waits for a device and all of it can be traced by `torch.compile` and `vmap`.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flashheat.errors import FlashheatError

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # the kernel serves fewer: `dispatch`
_ANOTHER_MESH = "Were the operators computed for another mesh?"
_SAME_OPERATORS = {
    "evals": "Take both from the same operators; the first k eigenpairs are `evals[..., :k]` and `evecs[..., :k]`.",
    "s": "Coefficients come from `to_basis` with the same `evecs`; its first k columns are `evecs[..., :k]`.",
}
MAKE_OFFSETS = "Of the meshes' sizes it is `torch.tensor([0, *sizes]).cumsum(0)`, on the device of the rest."


def check_features(x: Tensor, evecs: Tensor, mass: Tensor, offsets: Tensor | None) -> None:
    """`x [V, C]`, `evecs [V, K]`, `mass [V]` have one row a vertex; or each has one more leading axis B."""
    _check_common(x=x, evecs=evecs, mass=mass)
    _check_rank("x", x, offsets, "[V, C] (or [B, V, C])")
    if evecs.ndim != x.ndim or evecs.shape[:-1] != x.shape[:-1]:
        _check_rank("evecs", evecs, None, "[V, K] (or [B, V, K])")
        what_to_do = _ANOTHER_MESH if evecs.ndim == x.ndim else "Give each the same leading axis, or none."
        raise FlashheatError(
            f"`evecs` must have one row per vertex of `x`: got {_shapes(evecs=evecs, x=x)}. {what_to_do}"
        )
    if mass.shape != x.shape[:-1]:
        what_to_do = _ANOTHER_MESH if mass.ndim == x.ndim - 1 else f"Pass it as {_numbers(x.shape[:-1])}."
        raise FlashheatError(
            f"`mass` must have one entry per vertex of `x`: got {_shapes(mass=mass, x=x)}. {what_to_do}"
        )


def check_spectrum(evals: Tensor, evecs: Tensor, offsets: Tensor | None) -> None:
    """`evals [K]` belongs to `evecs [V, K]`; a packed or leading batch has `evals [B, K]`."""
    _check_common(evals=evals, evecs=evecs)
    expected = (*_batch(evecs, offsets), evecs.shape[-1])
    if evals.shape != expected:
        raise FlashheatError(
            f"`evals` must have one entry per column of `evecs`{_a_mesh(offsets, evecs)}, {_numbers(expected)}: "
            f"got {_shapes(evals=evals, evecs=evecs)}. {_of_one_basis('evals', evals.shape, expected)}"
        )


def check_times(times: Tensor, x: Tensor) -> None:
    """`times [C]` has one diffusion time per channel of `x [V, C]`."""
    if not isinstance(times, Tensor):
        raise FlashheatError(
            f"`times` must be a tensor [C], one diffusion time per channel of `x`: got {type(times).__name__}, x "
            f"{_numbers(x.shape)}. {_one_time(x)}"
        )
    _check_common(times=times, x=x)
    if times.ndim != 1 or times.shape[0] != x.shape[-1]:
        raise FlashheatError(
            f"`times` must have one entry per channel of `x`: got {_shapes(times=times, x=x)}. {_one_time(x)}"
        )


def check_spectral(s: Tensor, evecs: Tensor, offsets: Tensor | None) -> None:
    """`s [K, C]` has one row per column of `evecs [V, K]`; a packed or leading batch has `s [B, K, C]`."""
    _check_common(s=s, evecs=evecs)
    _check_rank("evecs", evecs, offsets, "[V, K] (or [B, V, K])")
    expected = (*_batch(evecs, offsets), evecs.shape[-1])
    if s.shape[:-1] != expected:
        layout = f"[{', '.join(map(str, _numbers(expected)))}, C]"
        one_channel = s.shape == expected
        what_to_do = "One channel is `s[..., None]`." if one_channel else _of_one_basis("s", s.shape[:-1], expected)
        raise FlashheatError(
            f"`s` must have one row per column of `evecs`{_a_mesh(offsets, evecs)}, {layout}: "
            f"got {_shapes(s=s, evecs=evecs)}. {what_to_do}"
        )


def check_same_shape(**tensors: Tensor) -> None:
    """All tensors have the shape of the first one."""
    _check_common(**tensors)
    first, *others = tensors
    for name in others:
        if tensors[name].shape != tensors[first].shape:
            both = {name: tensors[name], first: tensors[first]}
            raise FlashheatError(f"`{name}` must have the shape of `{first}`: got {_shapes(**both)}. {_ANOTHER_MESH}")


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype in which sums are kept: that of the widest tensor, and at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _check_common(**tensors: Tensor) -> None:
    first, *others = tensors
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise FlashheatError(
                f"`{name}` must be a torch.Tensor: got {type(tensor).__name__}. Make it one, by torch.as_tensor."
            )
        if tensor.dtype not in _DTYPES:
            parts = f"Pass `{name}.real` and `{name}.imag`, each by itself."
            raise FlashheatError(
                f"`{name}` must be a real floating-point tensor of 16 bits or more: got {tensor.dtype}. "
                f"{parts if tensor.dtype.is_complex else f'Convert it, by `{name}.float()`.'}"
            )
        if tensor.device.type == "meta":
            raise FlashheatError(f"`{name}` must hold numbers: it is on the meta device. FakeTensorMode traces shapes.")
    for name in others:
        if tensors[name].device != tensors[first].device:
            raise FlashheatError(
                f"`{name}` and `{first}` must be on one device: got {name} on {tensors[name].device}, "
                f"{first} on {tensors[first].device}. Move the operators with `operators.to(device)`."
            )


def _check_rank(name: str, tensor: Tensor, offsets: Tensor | None, layout: str) -> None:
    if offsets is not None:
        _check_offsets(name, tensor, offsets)
    if tensor.ndim not in (2, 3):
        column, more = f"A single column is `{name}[:, None]`.", f"Join leading axes, by `{name}.flatten(0, -3)`."
        what_to_do = {0: "Give it one row per vertex.", 1: column}.get(tensor.ndim, more)
        raise FlashheatError(f"`{name}` must be {layout}: got {_shapes(**{name: tensor})}. {what_to_do}")


def _check_offsets(name: str, tensor: Tensor, offsets: Tensor) -> None:
    if not isinstance(offsets, Tensor):
        raise FlashheatError(f"`offsets` must be an int64 tensor [B + 1]: got {type(offsets).__name__}. {MAKE_OFFSETS}")
    if offsets.ndim != 1 or offsets.shape[0] < 1 or offsets.dtype != torch.int64:
        raise FlashheatError(
            f"`offsets` must be an int64 tensor [B + 1], from 0 to the number of rows of `{name}`: "
            f"got {offsets.dtype} {_numbers(offsets.shape)}. {MAKE_OFFSETS}"
        )
    if offsets.device != tensor.device:
        raise FlashheatError(
            f"`offsets` and `{name}` must be on one device: got offsets on {offsets.device}, {name} on "
            f"{tensor.device}. Move them with `offsets.to({name}.device)`."
        )
    if tensor.ndim == 3:
        raise FlashheatError(
            f"`{name}` must have two axes where `offsets` packs meshes along the first: "
            f"got {_shapes(**{name: tensor})}. Leave `offsets` out, or the leading axis."
        )


def _of_one_basis(name: str, shape: Sequence[int], expected: Sequence[int]) -> str:
    """What to do where the meshes and columns of `name` are not those that the basis has."""
    if len(shape) == 0 or shape[-1] != expected[-1]:
        return _SAME_OPERATORS[name]
    if len(expected) == 1:
        return f"Pass that of one mesh, such as `{name}[0]`."
    return f"Pass one for each mesh, {range(expected[0]).stop} in all; `torch.stack` joins them."


def _one_time(x: Tensor) -> str:
    return f"For one time t in all channels, pass `x.new_full(({range(x.shape[-1]).stop},), t)`."


def _batch(evecs: Tensor, offsets: Tensor | None) -> tuple[int, ...]:
    return tuple(evecs.shape[:-2]) if offsets is None else (offsets.shape[0] - 1,)


def _a_mesh(offsets: Tensor | None, evecs: Tensor) -> str:
    return " for each mesh" if offsets is not None or evecs.ndim == 3 else ""


def _shapes(**tensors: Tensor) -> str:
    return ", ".join(f"{name} {_numbers(tensor.shape)}" for name, tensor in tensors.items())


def _numbers(shape: Iterable[int]) -> list[int]:
    """Plain numbers, also where a compiler has symbols for the sizes, which its messages could not name."""
    return [range(size).stop for size in shape]
