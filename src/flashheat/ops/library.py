"""The ops as a compiler sees them: opaque ops of `torch.library` with fakes and derivatives.

`torch.compile`, `torch.export` and AOTInductor cannot look into a launch, so on a GPU they call these, and each chooses
its path when it runs, with the sizes of that call. Eager calls and `torch.func` do not come here: an op of a library
costs its dispatch and knows no forward mode.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.ops.adjoint import derivatives, launch_backward, launch_forward, save, spectral_backward
from flashheat.ops.basis import (
    derivatives_of_from_basis,
    derivatives_of_to_basis,
    from_basis_reference,
    to_basis_reference,
)
from flashheat.ops.checks import accumulation_dtype
from flashheat.ops.diffuse import diffuse_reference
from flashheat.ops.dispatch import launcher, path_of
from flashheat.ops.refusals import Library

_library = Library()
_ops = torch.ops.flashheat

_library.define("diffuse(Tensor x, Tensor mass, Tensor evals, Tensor evecs, Tensor times, Tensor? offsets)"
                " -> (Tensor, Tensor)")  # fmt: skip
_library.define("diffuse_backward(Tensor g, Tensor? h, Tensor? mass, Tensor evals, Tensor evecs, Tensor times,"
                " Tensor? offsets, Tensor s, bool need_expand, bool need_times, bool need_evals)"
                " -> (Tensor, Tensor, Tensor, Tensor)")  # fmt: skip
_library.define("to_basis(Tensor x, Tensor? mass, Tensor evecs, Tensor? offsets) -> Tensor")
_library.define("from_basis(Tensor s, Tensor evecs, Tensor? offsets) -> Tensor")


def _diffuse(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    path = path_of(evecs, x, offsets)
    if path is not None:
        return launch_forward(x, mass, evals, evecs, times, offsets, path)
    y, s = diffuse_reference(x, mass, evals, evecs, times, offsets, return_spectral=True)
    return y.contiguous(), s.contiguous()


def _diffuse_backward(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, need_expand: bool, need_times: bool, need_evals: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`(e, u, d_times, d_evals)`; what is not needed is empty, because a library op cannot return None."""
    needs = {"need_expand": need_expand, "need_times": need_times, "need_evals": need_evals}
    path = path_of(evecs, g, offsets)
    if path is not None:
        found = launch_backward(g, h, mass, evals, evecs, times, offsets, s, path=path, **needs)
    else:
        reduce, expand = _without_mass, from_basis_reference
        found = spectral_backward(g, h, mass, evals, evecs, times, offsets, s, reduce=reduce, expand=expand, **needs)
    dtypes = (g.dtype, s.dtype, s.dtype, s.dtype)
    return tuple(
        s.new_empty(0, dtype=dtype) if t is None else t.to(dtype).contiguous()
        for t, dtype in zip(found, dtypes, strict=True)
    )


def _to_basis(x: Tensor, mass: Tensor | None, evecs: Tensor, offsets: Tensor | None) -> Tensor:
    path = path_of(evecs, x, offsets)
    if path is not None:
        return launcher(path).forward(x, mass, None, evecs, None, offsets, path, expand=False)[1]
    return (
        _without_mass(x, evecs, offsets) if mass is None else to_basis_reference(x, mass, evecs, offsets)
    ).contiguous()


def _from_basis(s: Tensor, evecs: Tensor, offsets: Tensor | None) -> Tensor:
    path = path_of(evecs, s, offsets)
    if path is not None:
        return launcher(path).expand(s, evecs, offsets, path)
    return from_basis_reference(s, evecs, offsets).contiguous()


def _without_mass(x: Tensor, evecs: Tensor, offsets: Tensor | None) -> Tensor:
    return to_basis_reference(x, x.new_ones(x.shape[:-1]), evecs, offsets)


for _op in (_diffuse, _diffuse_backward, _to_basis, _from_basis):
    _library.impl(_op.__name__[1:], _op, "CompositeExplicitAutograd")


def _spectrum(evecs: Tensor, C: int, dtype: torch.dtype, offsets: Tensor | None) -> Tensor:
    batch = evecs.shape[:-2] if offsets is None else (offsets.shape[0] - 1,)
    return evecs.new_empty((*batch, evecs.shape[-1], C), dtype=dtype)


@torch.library.register_fake("flashheat::diffuse", lib=_library)
def _(
    x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _spectrum(evecs, x.shape[-1], accumulation_dtype(x, evecs), offsets)


@torch.library.register_fake("flashheat::diffuse_backward", lib=_library)
def _(
    g: Tensor, h: Tensor | None, mass: Tensor | None, evals: Tensor, evecs: Tensor, times: Tensor,
    offsets: Tensor | None, s: Tensor, need_expand: bool, need_times: bool, need_evals: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return (
        g.new_empty(g.shape if need_expand else 0),
        s.new_empty(s.shape),
        s.new_empty(times.shape if need_times else 0),
        s.new_empty(evals.shape if need_evals else 0),
    )


@torch.library.register_fake("flashheat::to_basis", lib=_library)
def _(x: Tensor, mass: Tensor | None, evecs: Tensor, offsets: Tensor | None) -> Tensor:
    return _spectrum(evecs, x.shape[-1], accumulation_dtype(x, evecs), offsets)


@torch.library.register_fake("flashheat::from_basis", lib=_library)
def _(s: Tensor, evecs: Tensor, offsets: Tensor | None) -> Tensor:
    return s.new_empty((*evecs.shape[:-1], s.shape[-1]), dtype=accumulation_dtype(s, evecs))


def _save_diffuse(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mass, evals, evecs, times, offsets = inputs
    save(ctx, x, mass, evals, evecs, times, offsets, output[1])


def _differentiate_diffuse(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # these derivatives may be differentiated in turn
        spectral = partial(spectral_backward, reduce=_reduce, expand=_ops.from_basis)
        return *derivatives(ctx, g, h, spectral, _ops.from_basis), None
    return *derivatives(ctx, g, h, _ops.diffuse_backward, _ops.from_basis), None


def _reduce(g: Tensor, evecs: Tensor, offsets: Tensor | None) -> Any:
    return _ops.to_basis(g, None, evecs, offsets)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_to_basis(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    return *derivatives_of_to_basis(ctx, d, _ops.from_basis), None


def _differentiate_from_basis(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return *derivatives_of_from_basis(ctx, g, _reduce, _ops.from_basis), None


def _refuse(ctx: Any, *_: Any) -> None:
    raise FlashheatError(
        "flashheat::diffuse_backward cannot be differentiated: for second derivatives call flashheat.diffuse eagerly "
        "with create_graph=True."
    )


for _name, _backward, _setup in (
    ("diffuse", _differentiate_diffuse, _save_diffuse),
    ("diffuse_backward", _refuse, None),
    ("to_basis", _differentiate_to_basis, _save_inputs),
    ("from_basis", _differentiate_from_basis, _save_inputs),
):
    torch.library.register_autograd(f"flashheat::{_name}", _backward, setup_context=_setup, lib=_library)
