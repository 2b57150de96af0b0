"""Learned heat diffusion on surfaces: a fast, exactly differentiable operator, and all that is needed around it.

The public names are loaded when they are first used, so that `flashheat --help` need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashheat.errors import FlashheatError as FlashheatError
    from flashheat.errors import MeshError as MeshError
    from flashheat.mesh import Mesh as Mesh
    from flashheat.operators import Operators as Operators
    from flashheat.operators import OperatorStore as OperatorStore
    from flashheat.operators import compute_operators as compute_operators
    from flashheat.ops import diffuse as diffuse
    from flashheat.ops import diffuse_reference as diffuse_reference
    from flashheat.ops import diffuse_with_gradient as diffuse_with_gradient
    from flashheat.ops import from_basis as from_basis
    from flashheat.ops import to_basis as to_basis

_HOME = {
    "errors": ("FlashheatError", "MeshError"),
    "mesh": ("Mesh",),
    "operators": ("OperatorStore", "Operators", "compute_operators"),
    "ops": ("diffuse", "diffuse_reference", "diffuse_with_gradient", "from_basis", "to_basis"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_MODULES = ("compat", "data", "mesh", "nn", "operators", "ops", "report", "tasks", "train")

__version__ = "0.1.0"
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULE_OF:
        return getattr(import_module(f"flashheat.{_MODULE_OF[name]}"), name)
    if name in _MODULES:
        return import_module(f"flashheat.{name}")
    raise AttributeError(f"module 'flashheat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
