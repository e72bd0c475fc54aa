"""`explain()`: in-place errors that name who saved the value and who wrote it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast, overload

import torch

from safemodule._explain_backward import overwritten
from safemodule._explain_driver import decorate
from safemodule._explain_foreign import explain_foreign
from safemodule._explain_forward import explain_refusal
from safemodule._explain_grads import refuse_written_gradients
from safemodule._explain_hooks import SaveHooks
from safemodule._explain_message import explanation_of
from safemodule._explain_mode import WriteMode
from safemodule._explain_notes import Notes
from safemodule._explain_stacks import Entered, enter, leave

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from safemodule._explain_message import Explanation

__all__ = ["Explaining", "explain", "explanation_of"]

_F = TypeVar("_F", bound="Callable[..., Any]")


class _Block(NamedTuple):
    """One open block."""

    owner: Explaining
    check_values: bool
    entered: Entered | None
    """What to take down when it ends; None inside of another block, which does the work."""


class _Open(threading.local):
    """The blocks that are open in this thread, innermost last."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []


_open: Final = _Open()

# One for all: what is noted about a saved value dies with it, so nothing of a block outlives its
# graphs, and a generator or another thread goes on with what it knew.
_notes: Final = Notes()


class Explaining:
    """What `explain()` returns: a context manager and a decorator, to be used any number of times.

    Args:
        check_values: Compare checksums of saved values too.
    """

    __slots__ = ("_check_values",)

    def __init__(self, *, check_values: bool) -> None:
        self._check_values = check_values

    def __call__(self, function: _F, /) -> _F:
        """Return the function, run inside of a block; a generator, each of its steps."""
        return cast("_F", decorate(function, self))

    def __enter__(self) -> Self:
        if torch.compiler.is_compiling():
            return self
        blocks = _open.blocks
        outer = blocks[-1] if blocks else None
        check = self._check_values or (outer is not None and outer.check_values)
        entered = None
        if outer is None or check != outer.check_values:
            hooks = SaveHooks(_notes, overwritten, check_values=check)
            # Inside of another block, that one notes the writes.
            mode = WriteMode(
                _notes if outer is None else None, refuse_written_gradients if check else None
            )
            entered = enter(hooks, mode)
        blocks.append(_Block(self, check, entered))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = _take_out(self)
        if block is None:  # compiled, or entered in another thread
            return
        if block.entered is not None:
            leave(block.entered)
        if type(error) is RuntimeError:  # a subclass is somebody else's
            found = _explained(error, trace)
            if found is not None:
                raise found.error().with_traceback(trace) from None


def _explained(error: RuntimeError, trace: TracebackType | None) -> Explanation | None:
    try:
        return explain_foreign(error, trace, _notes) or explain_refusal(error, trace, _notes)
    except Exception as failure:  # noqa: BLE001  a failed search for words must not hide the error
        error.add_note(f"safemodule could not explain it: {failure!r}")
        return None


def _take_out(owner: Explaining) -> _Block | None:
    """Take out the innermost block of an object that is open in this thread."""
    blocks = _open.blocks
    for at in range(len(blocks) - 1, -1, -1):
        if blocks[at].owner is owner:
            return blocks.pop(at)
    return None


@overload
def explain(function: _F, /) -> _F: ...
@overload
def explain(function: None = None, /, *, check_values: bool = False) -> Explaining: ...
def explain(function: Any = None, /, *, check_values: bool = False) -> Any:
    """Make PyTorch's in-place errors name the line that saved the value and the line that wrote it.

    A context manager and a decorator, for forward and backward together: saves and writes are noted
    inside of it. When backward meets a value that was overwritten, `InplaceError` names the tensor,
    the operation that saved it, each write since, and possible fixes, best first. So do the errors
    about writing a leaf, some views, an inference tensor, or memory that overlaps, when they leave
    the block.

    It keeps no tensor alive and costs less than ``torch.autograd.set_detect_anomaly(True)``. It
    covers the thread that enters it. Inside of checkpointing, `save_on_cpu` and other saved-tensor
    hooks those rule, as always in PyTorch: the innermost pair does. Compiled regions are opaque.

    Args:
        function: The function, where it is used as a bare decorator, ``@explain``.
        check_values: Compare checksums of all saved values as well, so that writes which PyTorch
            does not count are found: of ``.data``, of numpy arrays that share the memory, of batch
            norm statistics, of kernels. They give wrong gradients without an error. So does a
            custom backward that writes the gradient it is given; it is refused too. Reads each
            saved value twice more, and waits for the device in backward.

    Raises:
        InplaceError: In the place of PyTorch's RuntimeError, which it is too; its text contains
            PyTorch's.

    Example:
        >>> import torch
        >>> from safemodule import InplaceError, explain
        >>> x = torch.ones(3, requires_grad=True)
        >>> try:
        ...     with explain():
        ...         y = torch.sigmoid(x)
        ...         y += 1
        ...         y.sum().backward()
        ... except InplaceError as error:
        ...     print(isinstance(error, RuntimeError), "written by += (add_)" in str(error))
        True True
    """
    explaining = Explaining(check_values=check_values)
    return explaining if function is None else explaining(function)


explain.__module__ = "safemodule"
