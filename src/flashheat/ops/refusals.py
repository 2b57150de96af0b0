"""A library whose ops refuse, in one line, the derivatives that they have no rule for.

It is separate because every library op needs it: in forward mode torch would return zero without a word, and under
`torch.func` it would speak of an `autograd.Function` that no user has written.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.ops.dispatch import needs_grad

_INSTEAD = "call flashheat.diffuse, to_basis or from_basis eagerly, which have it."


class Library(torch.library.Library):
    """A fragment of the library "flashheat"; each kernel and each autograd formula gets its refusal here."""

    def __init__(self) -> None:
        super().__init__("flashheat", "FRAGMENT")

    def impl(self, op_name: str, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> None:
        """Register `fn`; `register_fake` and `register_autograd` of torch come here too."""
        # forward mode is refused by both: a compiler that tries a call comes to the formula alone, and a call below
        # autograd to the kernel alone
        refuse = _refuse_transforms if dispatch_key == "Autograd" else _refuse_forward_mode

        name = f"flashheat::{op_name.removeprefix('flashheat::')}"

        @wraps(fn)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            refuse(name, *args)
            return fn(*args, **kwargs)

        super().impl(op_name, guarded, dispatch_key, **options)


def _refuse_transforms(name: str, *args: Any) -> None:
    if torch._C._are_functorch_transforms_active() and needs_grad(*(t for t in args if isinstance(t, Tensor))):
        raise FlashheatError(f"{name} has no derivative under torch.func (grad, vjp, jacrev): {_INSTEAD}")
    _refuse_forward_mode(name)


def _refuse_forward_mode(name: str, *_: Any) -> None:
    if torch.autograd.forward_ad._current_level >= 0:
        raise FlashheatError(f"{name} has no forward-mode derivative (jvp, jacfwd): {_INSTEAD}")
