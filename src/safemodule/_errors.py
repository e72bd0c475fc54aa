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

    Example:
        >>> import torch
        >>> from safemodule import InputMutationError, freeze_inputs
        >>> @freeze_inputs(mode="strict")
        ... def shift(x):
        ...     return x.add_(1)
        >>> try:
        ...     shift(torch.zeros(3))
        ... except InputMutationError as error:
        ...     print(error.mutation.op, "would write", error.mutation.argument)
        add_ would write x
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

    Example:
        >>> import warnings
        >>> import torch
        >>> from safemodule import InputMutationWarning, freeze_inputs
        >>> @freeze_inputs(mode="warn")
        ... def shift(x):
        ...     return x.add_(1)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", InputMutationWarning)
        ...     try:
        ...         shift(torch.zeros(3))
        ...     except InputMutationWarning as warning:
        ...         print(warning.mutation.op, "wrote", warning.mutation.argument)
        add_ wrote x
    """

    def __init__(self, message: str = "", mutation: Mutation | None = None) -> None:
        super().__init__(message)
        self.mutation = mutation


class InplaceError(RuntimeError):
    """Autograd needs a value that was overwritten in place; the text names both lines.

    Raised by ``explain()`` in the place of PyTorch's own error.

    Example:
        >>> import torch
        >>> from safemodule import InplaceError, explain
        >>> x = torch.ones(3, requires_grad=True)
        >>> with explain():
        ...     y = x.exp()
        ...     y += 1
        ...     try:
        ...         y.sum().backward()
        ...     except InplaceError as error:
        ...         print("y += 1" in str(error))
        True
    """


# Tracebacks and pickles show the public name.
for _public in (InputMutationError, InputMutationWarning, InplaceError):
    _public.__module__ = "safemodule"
