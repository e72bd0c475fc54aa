"""Where in the user's own code something happened.

A write inside ``torch.nn.functional``, an ``nn.ReLU(inplace=True)`` or an optimiser is reported at
the line of the user's code that led there.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Location", "locate"]

# How far a file is from being the user's own code. Packages installed beside torch (torchvision,
# transformers) are user code here: the line that has to change stands in them.
_USER: Final = 0
_TORCH: Final = 1
_STDLIB: Final = 2
_OURS: Final = 3

_OURS_DIR: Final = os.path.dirname(__file__) + os.sep
_DEMO: Final = _OURS_DIR + "_demo.py"  # a user's program that happens to ship with the package
_TORCH_DIR: Final = os.path.dirname(torch.__file__) + os.sep
_STDLIB_DIR: Final = os.path.dirname(functools.__file__) + os.sep
# Third-party packages may live below the standard library's folder.
_SITE_DIRS: Final = (_STDLIB_DIR + "site-packages" + os.sep, _STDLIB_DIR + "dist-packages" + os.sep)

# Kind by filename. Names of notebook cells never end, so the memo is emptied when it is full.
_kinds: dict[str, int] = {}
_KINDS_MAX: Final = 4096


class Location(NamedTuple):
    """A line of source code. It holds strings and a number, never a frame.

    Attributes:
        filename: As in the code object: a path, or ``"<string>"``, ``"<stdin>"`` and the like.
        lineno: The line, counted from 1, as Python's own traceback would give it.
        function: The name of the function, ``"<module>"`` at top level.
        module: ``__name__`` of the module, ``""`` where there is none.
    """

    filename: str
    lineno: int
    function: str
    module: str = ""

    @property
    def line(self) -> str:
        """The source line, stripped; ``""`` where the source is not known. Reads the file."""
        linecache.checkcache(self.filename)  # the file may have been edited since it was read
        return linecache.getline(self.filename, self.lineno).strip()


def locate(depth: int = 1) -> Location:
    """Return the innermost line on the stack that is the user's own.

    Frames of torch, of this package and of the standard library are skipped. Where there are no
    others (a worker thread of torch), it is the outermost frame of torch, else of the standard
    library, else of this package.

    Args:
        depth: How many frames to leave out without a look; 1 starts at the caller.
    """
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _classify(code.co_filename, frame.f_globals)
        if kind == _USER:
            return _location(frame)
        frame = frame.f_back
    return _outermost(sys._getframe(depth))  # pyright: ignore[reportPrivateUsage]


def _location(frame: FrameType) -> Location:
    code = frame.f_code
    # f_lineno is None in rare cases of generated code.
    return Location(
        code.co_filename,
        frame.f_lineno or 0,
        code.co_name,
        frame.f_globals.get("__name__") or "",
    )


def _outermost(innermost: FrameType) -> Location:
    """Return the outermost of the frames nearest to the user, all of them library code."""
    best, best_kind = innermost, _OURS
    frame: FrameType | None = innermost
    while frame is not None:
        kind = _kinds.get(frame.f_code.co_filename, _OURS)
        if kind <= best_kind:
            best, best_kind = frame, kind
        frame = frame.f_back
    return _location(best)


def _classify(filename: str, module_globals: dict[str, Any]) -> int:
    """Say whose file this is, and remember it."""
    if filename.startswith(_OURS_DIR) and filename != _DEMO:
        kind = _OURS
    elif filename.startswith(_TORCH_DIR):
        kind = _TORCH
    elif filename.startswith("<frozen ") or (
        filename.startswith(_STDLIB_DIR) and not filename.startswith(_SITE_DIRS)
    ):
        kind = _STDLIB
    else:
        kind = _USER
        # Source that only a loader can give (a zip archive). This notes the loader, reads nothing.
        linecache.lazycache(filename, module_globals)
    if len(_kinds) >= _KINDS_MAX:
        _kinds.clear()
    _kinds[filename] = kind
    return kind
