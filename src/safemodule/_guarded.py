"""The wrapper around a guarded function: from the caller's tensors to handles and back.

It is the hot path: what a call pays when nothing is written. Two ways lead through it, with equal
results: plain tensors and numbers given by position (`_flat`), the inputs of most modules, and
everything else: containers, keywords, snapshots, tracing (`_entry`).
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from safemodule import _modes
from safemodule._compat import (
    ALONE,
    CAN_SWAP,
    dispatch_modes,
    forward_level,
    tracing_state,
    transforms_active,
)
from safemodule._compile import compiled_call
from safemodule._entry import enter, leave, mark_over
from safemodule._flat import Entries, flat_enter, flat_leave
from safemodule._modes import effective
from safemodule._tensor import FrozenTensor

if TYPE_CHECKING:
    from safemodule._state import Plan

PLAN = "__safemodule_plan__"


def guard(func: Any, plan: Plan, stand_in: Any = None) -> Any:
    """Return `func` guarded by `plan`.

    Args:
        func: The function.
        plan: What it declares.
        stand_in: What its class has as `forward`, if that is another function, which calls this one.
    """
    wrapper = _wrapper(func, plan)
    guarded = types.FunctionType(
        # A code object of its own: TorchDynamo keeps what it compiled, and counts recompilations,
        # per code object, and what it compiled belongs to these globals.
        wrapper.__code__.replace(),
        names_of(func, wrapper),
        wrapper.__name__,
        wrapper.__defaults__,
        wrapper.__closure__,
    )
    functools.update_wrapper(guarded, func)
    setattr(guarded, PLAN, plan)
    if plan.chained:
        itself = wrapper.__code__.co_freevars.index("itself")
        wrapper.__closure__[itself].cell_contents[0] = stand_in or guarded
    return guarded


def names_of(func: Any, wrapper: Any) -> dict[str, Any]:
    """Return the globals of the original: TorchScript compiles its source with the wrapper's.

    The wrapper itself uses closure variables only.
    """
    names: dict[str, Any] = getattr(func, "__globals__", wrapper.__globals__)
    if not getattr(func, "__closure__", None):
        return names
    names = dict(names)
    for name, cell in zip(func.__code__.co_freevars, func.__closure__, strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return names


def _wrapper(func: Any, plan: Plan) -> Any:
    # What earlier calls saw: once given a container, a function takes the general way.
    flat_way = [CAN_SWAP and not plan.snapshot and not plan.mutable]
    # Whatever the wrappers use are closure variables: see `names_of`; faster too.
    modes, get_blocks, declared = _modes, _modes.get_blocks, plan.mode
    # Tells TorchDynamo, and 0.1 us cheaper than `is_compiling`, which tells export too; the inputs
    # of an export are never plain tensors.
    is_traced = torch.compiler.is_dynamo_compiling
    here: Any = sys.modules[__name__]  # for what the usual call never needs

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return here.compiled_call(func, plan, args, kwargs)
        blocks = get_blocks()
        if (blocks[-1] if blocks else declared or modes.process) == "off":
            return func(*args, **kwargs)
        return here.general(func, plan, flat_way, args, kwargs)

    if not plan.chained:
        return guarded

    itself: list[Any] = []
    first = plan.names(2)[1]
    transforms, dispatching, tracing = transforms_active, dispatch_modes, tracing_state
    tangents, recording, refcount = forward_level, torch.is_grad_enabled, sys.getrefcount
    strided, plain, frozen, nothing = torch.strided, Tensor, FrozenTensor, _NOTHING
    alone, returned = ALONE, ALONE + 1

    # A module and one plain tensor, the usual call, is written out here: half of the price of
    # `general`. Each line was measured.
    def guarded_forward(self: Any, x: Any = nothing, /, *more: Any, **kwargs: Any) -> Any:
        if is_traced():
            return here.compiled_call(func, plan, here.packed(self, x, more), kwargs)
        blocks = get_blocks()
        if (blocks[-1] if blocks else declared or modes.process) == "off":
            if x is nothing or more or kwargs:
                return func(*here.packed(self, x, more), **kwargs)
            return func(self, x)
        if type(self).forward is not itself[0] and here.is_parent_forward(self):
            return func(*here.packed(self, x, more), **kwargs)
        if (
            type(x) is plain
            and not (more or kwargs)
            and flat_way[0]
            and x.layout is strided
            and not (transforms() or dispatching() or tracing())
        ):
            try:
                version = x._version
            except RuntimeError:  # an inference tensor has none
                return here.general(func, plan, flat_way, (self, x), kwargs)
            if x.requires_grad:
                if not recording():
                    return here.general(func, plan, flat_way, (self, x), kwargs)
                handle: Any = x[...]  # 0.1 us less than view_as
            else:
                handle = x[...] if tangents._current_level >= 0 else x.detach()  # noqa: SLF001 -- it moves
            handle.__class__ = frozen
            handle._safemodule = (x, plan, type(self), first)
            try:
                out = func(self, handle)
            except BaseException:
                here.mark_over((handle,))
                raise
            if x._version == version:
                if type(out) is plain and refcount(handle) == alone:
                    return out
                untouched = out is handle and refcount(handle) == returned
                if untouched and type(handle._safemodule) is tuple:
                    return x
            entries: Any = [(x, handle, version)]
            handle = None
            return here.flat_leave(plan, type(self), entries, out)
        return here.general(func, plan, flat_way, here.packed(self, x, more), kwargs)

    itself.append(guarded_forward)
    return guarded_forward


_NOTHING: Any = object()


def packed(module: Any, x: Any, more: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a `forward` was given by position."""
    return (module, *more) if x is _NOTHING else (module, x, *more)


def is_parent_forward(module: Any) -> bool:
    """Tell whether this is `super().forward(...)` from within the module's own guarded forward."""
    here = is_parent_forward.__code__.co_filename
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == here and code.co_name in ("guarded", "guarded_forward"):
            names = frame.f_locals
            outer = (names["self"],) if "self" in names else names["args"]
            if outer and outer[0] is module:
                return True
        frame = frame.f_back
    return False


def general(
    func: Any, plan: Plan, flat_way: list[bool], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a guarded function with whatever it was given."""
    if flat_way[0] and not kwargs:
        made, entries = flat_enter(plan, args)
        if made is not None:
            try:
                out = func(*made)
            except BaseException:
                mark_over(made)
                raise
            made = None
            return flat_leave(plan, None, cast("Entries", entries), out)
        flat_way[0] = entries is None
    if torch.compiler.is_compiling():  # `torch.export`
        return compiled_call(func, plan, args, kwargs)
    call, args, kwargs = enter(plan, args, kwargs)
    try:
        out = func(*args, **kwargs)
    except BaseException:
        mark_over(made for _, made, _ in call.entries.values())
        raise
    args = kwargs = None  # type: ignore[assignment] # so that only what kept a handle owns it
    return leave(call, out)


def guard_coroutine(func: Any, plan: Plan) -> Any:
    """Return a coroutine function guarded by `plan`."""

    @functools.wraps(func)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        if effective(plan.mode) == "off":
            return await func(*args, **kwargs)
        call, args, kwargs = enter(plan, args, kwargs)
        try:
            out = await func(*args, **kwargs)
        except BaseException:
            mark_over(made for _, made, _ in call.entries.values())
            raise
        args = kwargs = None  # type: ignore[assignment]
        return leave(call, out)

    setattr(guarded, PLAN, plan)
    return guarded
