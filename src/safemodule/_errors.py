"""The exceptions and the warning of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safemodule._record import Mutation

__all__ = ["InplaceError", "InputMutationError", "InputMutationWarning"]


class InputMutationError(RuntimeError):
    """A module was about to write one of its inputs, and its mode is ``"strict"``.

    Raised before anything has changed. It is a `RuntimeError`, as PyTorch's own in-place errors are.

    Args:
        message: The full text: what, where, and the possible fixes.
        mutation: The write that was refused.

    Attributes:
        mutation: The write that was refused, or None if it is not known.
    """

    # Whatever is set on an exception travels in its __dict__ through pickle and copy, provided
    # that the class can be rebuilt from `args`: hence the defaults.
    def __init__(self, message: str = "", mutation: Mutation | None = None) -> None:
        super().__init__(message)
        self.mutation = mutation


class InputMutationWarning(UserWarning):
    """A module wrote one of its inputs, and its mode is ``"warn"``.

    The write went to a copy, so the caller's tensor is unchanged and the result is right. The
    warning points at the line that wrote. To fix it, write out of place (``x = x + 1`` for
    ``x += 1``), or declare the argument as ``Mutable`` if the caller is meant to see the write.

    Args:
        message: What was written, and where.
        mutation: The write.

    Attributes:
        mutation: The write, or None if it is not known.
    """

    def __init__(self, message: str = "", mutation: Mutation | None = None) -> None:
        super().__init__(message)
        self.mutation = mutation


class InplaceError(RuntimeError):
    """Autograd needs a value that was overwritten in place; the text names both lines.

    Raised by ``explain()`` in the place of PyTorch's own error, which is its ``__cause__``.
    """


# Tracebacks and pickles show the public name.
for _public in (InputMutationError, InputMutationWarning, InplaceError):
    _public.__module__ = "safemodule"
