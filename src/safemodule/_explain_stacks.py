"""Puts hooks and mode on PyTorch's stacks, and takes them off in whatever order blocks end.

Both stacks belong to a thread, and leaving pops the top, whosever that is. A generator that keeps a
block open may end it while another one is on top: then the others are lifted and put back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from safemodule import _explain_compat as compat
from safemodule._explain_hooks import SaveHooks

if TYPE_CHECKING:
    from safemodule._explain_mode import WriteMode

__all__ = ["Entered", "enter", "leave"]


class Entered(NamedTuple):
    """What was put on the stacks."""

    hooks: SaveHooks | None
    """None where other hooks were there already: they rule, as they do in PyTorch."""
    mode: WriteMode


def enter(hooks: SaveHooks, mode: WriteMode) -> Entered:
    """Put hooks and mode on the stacks of this thread."""
    top = compat.top_hooks()
    free = compat.hooks_enabled() and (top is None or _is_ours(top))
    if free:
        compat.push_hooks(hooks.pack, hooks.unpack)
    compat.enter_mode(mode)
    _tolerance.begin()
    return Entered(hooks if free else None, mode)


def leave(entered: Entered) -> None:
    """Take hooks and mode off again."""
    _tolerance.end()
    compat.leave_mode(entered.mode)
    if entered.hooks is not None:
        _pop_hooks(entered.hooks)


def _is_ours(pair: tuple[Any, Any]) -> bool:
    return isinstance(getattr(pair[0], "__self__", None), SaveHooks)


def _pop_hooks(hooks: SaveHooks) -> None:
    if not compat.SEES_HOOKS:
        compat.pop_hooks()
        return
    lifted: list[tuple[Any, Any]] = []
    while (top := compat.top_hooks()) is not None:
        compat.pop_hooks()
        if getattr(top[0], "__self__", None) is hooks:
            break
        lifted.append(top)
    for pair in reversed(lifted):
        compat.push_hooks(*pair)


class _Tolerance:
    """Lets `torch.func` transforms run inside of a block: they refuse to run under any hooks.

    They turn hooks off for as long as they run, and fail if there are some. Ours may be turned off:
    what a transform saves is then checked by PyTorch itself, as always. Their way to turn them off
    is a function of one module, which is replaced while a block is open anywhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._disable: Any = None

    def begin(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._disable = getattr(compat.hooks_module, compat.HOOKS_DISABLE, None)
                if self._disable is not None:
                    setattr(compat.hooks_module, compat.HOOKS_DISABLE, self._tolerant)

    def end(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0 and self._disable is not None:
                setattr(compat.hooks_module, compat.HOOKS_DISABLE, self._disable)

    def _tolerant(self, message: str, fail_if_non_empty: bool = True) -> None:
        top = compat.top_hooks()
        if top is not None and _is_ours(top):
            self._disable(message, False)
        elif fail_if_non_empty:
            self._disable(message)
        else:
            self._disable(message, False)


_tolerance: Final = _Tolerance()
