"""Where on the stack a save or a write happens, noted at the cost of a few attribute reads.

A place is kept as a code object and an offset in it: no frame, which would hold tensors, and no
line number, which takes a microsecond to look up. `location` makes a line of it when one is shown.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from safemodule import _explain_compat as compat
from safemodule import _location
from safemodule._location import Location

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = [
    "CALL_MODULE",
    "Place",
    "Span",
    "caller",
    "is_user",
    "location",
    "place_of_save",
    "place_of_write",
    "span",
    "user_frames",
]

# How many frames above the line that saves may lie between it and the module it belongs to.
_MODULE_DEPTH: Final = 16

CALL_MODULE: Final = compat.CALL_MODULE

# Shared with `locate()`, so that both mean the same by the user's own line.
_kinds: Final = _location._kinds  # noqa: SLF001  the memo itself: a call for each frame is too dear
_classify: Final = _location._classify  # noqa: SLF001
_USER: Final = _location._USER  # noqa: SLF001


class Place(NamedTuple):
    """A place in the user's code; `code` is None where there was no Python frame."""

    code: CodeType | None
    offset: int


class Span(NamedTuple):
    """The source range of one instruction: lines counted from 1, columns in UTF-8 bytes from 0."""

    line: int
    end_line: int
    column: int
    end_column: int


def place_of_save(frame: FrameType | None) -> tuple[CodeType | None, int, Any]:
    """Return code and offset of the user's innermost line, and a weak reference to the module.

    The module is the innermost whose call is on the stack. Its frame is one of torch that binds its
    arguments once, so reading its locals keeps nothing alive longer than the frame does.
    """
    module: Any = None
    while frame is not None:
        code = frame.f_code
        if code is CALL_MODULE:
            if module is None:
                module = weakref.ref(frame.f_locals["self"])
        else:
            name = code.co_filename
            kind = _kinds.get(name)
            if kind is None:
                kind = _classify(name, frame.f_globals)
            if kind == _USER:
                return code, frame.f_lasti, module or _module_above(frame)
        frame = frame.f_back
    return None, -1, module


def _module_above(frame: FrameType) -> Any:
    up = frame.f_back
    for _ in range(_MODULE_DEPTH):
        if up is None:
            return None
        if up.f_code is CALL_MODULE:
            return weakref.ref(up.f_locals["self"])
        up = up.f_back
    return None


def place_of_write(frame: FrameType | None) -> tuple[CodeType | None, int, str]:
    """Return code and offset of the user's innermost line, and the optimiser that steps there."""
    step = ""
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        kind = _kinds.get(name)
        if kind is None:
            kind = _classify(name, frame.f_globals)
        if kind == _USER:
            return code, frame.f_lasti, step
        if code.co_name == "step":
            step = code.co_qualname
        elif step and code.co_name == "wrapper":
            # Around each optimiser's step, and it knows the class: AdamW steps as Adam. Its locals
            # are bound once, so reading them keeps nothing.
            optimizer = frame.f_locals.get("self")
            if optimizer is not None:
                step = f"{type(optimizer).__name__}.step"
        frame = frame.f_back
    return None, -1, step


def is_user(frame: FrameType) -> bool:
    """Tell whether a frame runs the user's own code."""
    name = frame.f_code.co_filename
    kind = _kinds.get(name)
    return (_classify(name, frame.f_globals) if kind is None else kind) == _USER


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that are the user's own, innermost first."""
    found: list[FrameType] = []
    while frame is not None:
        if is_user(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def span(place: Place) -> Span | None:
    """Return the source range of the instruction at a place, None where it is not known."""
    if place.code is None or place.offset < 0:
        return None
    positions = itertools.islice(place.code.co_positions(), place.offset // 2, None)
    line, end_line, column, end_column = next(positions, (None, None, None, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None  # compiled without columns (-X no_debug_ranges)
    return Span(line, end_line, column, end_column)


def location(place: Place) -> Location | None:
    """Return the line of a place."""
    if place.code is None:
        return None
    line = place.code.co_firstlineno
    for start, end, number in place.code.co_lines():
        if start <= place.offset < end and number is not None:
            line = number
    return Location(place.code.co_filename, line, place.code.co_qualname)


def caller(depth: int = 1) -> FrameType:
    """Return the frame that is `depth` calls above the function that asks."""
    return sys._getframe(depth + 1)
