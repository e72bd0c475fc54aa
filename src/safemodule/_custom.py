"""Custom autograd Functions that write their own input.

`autograd.Function.apply` is not routed through tensor subclasses; the operations inside `forward`
are. A redirect there leaves the handle with another implementation than the one `apply` was given,
and `ctx.mark_dirty(x)` then refuses it ("received a tensor that was not an input"). But the input
is not dirty any more: what was written is the private copy, which `apply` treats as a fresh
output, with the right gradient. So the handle is taken off the list.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torch.autograd import Function

_APPLY: Any = getattr(Function.apply, "__code__", None)
_PENDING = "_safemodule_pending"


def redirected(handle: Any) -> None:
    """Note that `handle` was redirected; if a custom Function is running, tell its context."""
    if _APPLY is None or not handle.requires_grad:
        return
    inner, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            if inner is not None:
                _unmark(frame.f_locals.get("cls"), inner.f_locals, handle)
            return
        inner, frame = frame, frame.f_back


def _unmark(function: Any, forward_locals: dict[str, Any], handle: Any) -> None:
    backward = getattr(function, "_backward_cls", None)
    if backward is None:
        return
    context = next((v for v in forward_locals.values() if type(v) is backward), None)
    if context is None:  # `setup_context` style: the context appears after `forward`
        _unmark_later(backward, handle)
        return
    if context.dirty_tensors:  # marked before the write
        context.dirty_tensors = tuple(t for t in context.dirty_tensors if t is not handle)
    mark, ref = context.mark_dirty, weakref.ref(handle)
    context.mark_dirty = lambda *tensors: mark(*(t for t in tensors if t is not ref()))


def _unmark_later(backward: Any, handle: Any) -> None:
    """Leave the handle out of the next `mark_dirty` of this class."""
    if _PENDING not in backward.__dict__:
        mark = backward.mark_dirty

        def mark_dirty(context: Any, *tensors: Any) -> None:
            waiting = [ref() for ref in getattr(backward, _PENDING)]
            getattr(backward, _PENDING).clear()
            mark(context, *(t for t in tensors if not any(t is w for w in waiting)))

        setattr(backward, _PENDING, [])
        backward.mark_dirty = mark_dirty
    getattr(backward, _PENDING).append(weakref.ref(handle))
