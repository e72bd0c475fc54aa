"""Custom autograd Functions that write their own input.

`autograd.Function.apply` is not routed through tensor subclasses; the operations inside `forward`
are. A redirect there leaves the handle with another implementation than the one `apply` was given,
and `ctx.mark_dirty(x)` then refuses it ("received a tensor that was not an input"). But the input
is not dirty any more: what was written is the private copy, which `apply` treats as a fresh
output, with the right gradient. So the handle is taken off the list.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from safemodule._compat import context_class_of

_APPLY: Any = getattr(Function.apply, "__code__", None)
_PENDING = "_safemodule_pending"


def redirected(tensors: list[Any]) -> None:
    """Note that a handle and its views moved; if a custom Function is running, tell its context."""
    if _APPLY is None or not tensors[0].requires_grad:
        return
    inner, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            if inner is not None:  # pragma: no branch -- `apply` itself writes nothing
                _unmark(frame.f_locals.get("cls"), inner.f_locals, tensors)
            return
        inner, frame = frame, frame.f_back


def _unmark(function: Any, forward_locals: dict[str, Any], moved: list[Any]) -> None:
    backward = context_class_of(function)
    if backward is None:  # pragma: no cover -- a torch that names it otherwise
        return
    context = next((v for v in forward_locals.values() if type(v) is backward), None)
    if context is None:  # `setup_context` style: the context appears after `forward`
        _unmark_later(backward, moved)
        return
    if context.dirty_tensors:  # marked before the write
        context.dirty_tensors = _without(context, context.dirty_tensors, moved)
    # Weak references, for the context would own itself through them.
    owner, refs = weakref.ref(context), [weakref.ref(t) for t in moved]

    def mark_dirty(*tensors: Any) -> None:
        ctx = owner()
        backward.mark_dirty(ctx, *_without(ctx, tensors, [ref() for ref in refs]))

    context.mark_dirty = mark_dirty


def _without(context: Any, tensors: tuple[Any, ...], moved: list[Any]) -> tuple[Any, ...]:
    left = []
    for tensor in tensors:
        if not any(tensor is m for m in moved):
            left.append(tensor)
        elif tensor.requires_grad and (tensor._is_view() or not context.next_functions):
            # `apply` would have to tell the base of the view, which is not among its inputs; and
            # under `no_grad` it takes the history off what it thinks is a fresh output.
            raise RuntimeError(
                "safemodule: a custom autograd Function is the first to write a guarded input that "
                "requires a gradient, through a view of it or under no_grad, and PyTorch cannot be "
                "told of the copy after `forward` has begun. Possible fixes, best first:\n"
                "  1. let the Function return a new tensor instead of ctx.mark_dirty(x)\n"
                "  2. clone the input before it is given to the Function: x = x.clone()"
            )
    return tuple(left)


@functools.cache
def _owners_per_input() -> int:
    """Return how many owners `apply` adds to each of its inputs; asked once, by trying."""
    counts: list[int] = []

    class Probe(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Tensor:
            del ctx
            counts.append(x._use_count())
            return x.clone()

    Probe.apply(torch.zeros(1))
    return counts[0] - 1


def held_by_apply(members: list[Any]) -> int:
    """Count the owners that a running custom Function adds: it holds its inputs in C++."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            inputs = frame.f_locals.get("args", ())
            given = sum(any(x is member for member in members) for x in inputs)
            return given * _owners_per_input()
        frame = frame.f_back
    return 0


def _unmark_later(backward: Any, moved: list[Any]) -> None:
    """Leave the tensors out of the next `mark_dirty` of this class."""
    if _PENDING not in backward.__dict__:
        mark = backward.mark_dirty

        def mark_dirty(context: Any, *tensors: Any) -> None:
            waiting = [ref() for ref in getattr(backward, _PENDING)]
            getattr(backward, _PENDING).clear()
            mark(context, *_without(context, tensors, waiting))

        setattr(backward, _PENDING, [])
        backward.mark_dirty = mark_dirty
    getattr(backward, _PENDING).extend(weakref.ref(t) for t in moved)
