"""Tracebacks without the frames of this package: what is left is the program's own."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from safemodule._errors import InplaceError, InputMutationError, InputMutationWarning

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import CodeType

__all__ = ["chain", "clean"]

_OURS: Final = str(Path(__file__).parent) + os.sep
# What torch raises from calls that go through this package. Where any other error comes from the
# innermost frame, the fault may be ours, and the frames stay.
_TORCHS: Final = (RuntimeError, IndexError, TypeError, ValueError)
_SPOKEN: Final = (InplaceError, InputMutationError, InputMutationWarning)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised from or in the handling of, and members of groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__context__, error.__cause__]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions


def clean(error: BaseException, start: Container[CodeType] = ()) -> None:
    """Take our frames out of an error's traceback, and out of those that it is chained to.

    Args:
        error: The error.
        start: Functions of ours that started the program: what is outside of them goes too.
    """
    for each in chain(error):
        each.__traceback__ = _without_ours(each, start)


def _without_ours(error: BaseException, start: Container[CodeType]) -> TracebackType | None:
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries = [] if entry.tb_frame.f_code in start else [*entries, entry]
        entry = entry.tb_next
    kept = [entry for entry in entries if not _is_ours(entry)]
    if entries and _is_ours(entries[-1]) and not isinstance(error, (*_SPOKEN, *_TORCHS)):
        kept = entries[entries.index(kept[0]) :] if kept else entries
    head: TracebackType | None = None
    for entry in reversed(kept):
        head = TracebackType(head, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return head


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)
