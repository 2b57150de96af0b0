"""The errors that flashheat raises for its users: each is one clear line (what must hold, what came, what to do).

They are separate so that the command line can tell a user's problem (one line, exit 1) from a bug (a traceback).
"""

from numbers import Integral


class FlashheatError(ValueError):
    """Something a user can mend. The message is one line: what must hold; what came; what to do."""


class MeshError(FlashheatError):
    """A mesh that cannot be read or used, or operators that do not belong to it.

    Args:
        message: the line.
        which: the number of the mesh among several that are worked on together.
    """

    def __init__(self, message: str, which: int | None = None) -> None:
        super().__init__(message)
        self.which = which


class MissingExtraError(FlashheatError, ImportError):
    """An optional dependency is absent; the message names the extra that brings it."""


def check_count(name: str, value: object) -> None:
    """Raise a FlashheatError unless `value` is a whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise FlashheatError(f"`{name}` must be a whole number of at least 1: got {value!r}.")
