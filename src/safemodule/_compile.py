"""A guarded call that is being compiled or exported.

Inputs are cloned, and nothing is recorded: the compiler makes writes functional and drops the clones
that nobody writes, copy-on-write for free. Where gradients are recorded, the clones are handles of a
kind that the compiler traces through, so that a value read and written later keeps its gradient.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from safemodule import _compile_boundary, _modes
from safemodule._compile_compat import exporting, is_tracing
from safemodule._compile_tensor import CompiledHandle, handles_work, plain

if TYPE_CHECKING:
    from safemodule._state import Plan

_compile_boundary.install()


def compiled_call(func: Any, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a guarded function while a compiler traces it."""
    if (plan.mode or _modes.process) == "off":
        return func(*args, **kwargs)
    handles = _with_handles()
    names, mutable, count = plan.positional, plan.mutable, len(plan.positional)
    known: list[tuple[Tensor, Tensor]] = []
    made: list[Any] = []
    for i, arg in enumerate(args):
        name = names[i] if i < count else plan.variadic
        made.append(arg if name in mutable else _cloned(arg, known, handles))
    open_ended = plan.keywords in mutable
    named: dict[str, Any] = {}
    for name, arg in kwargs.items():
        exempt = name in mutable or (open_ended and name not in plan.parameters)
        named[name] = arg if exempt else _cloned(arg, known, handles)
    out = func(*made, **named)
    return _released(out) if handles else out


def compiled_tensor(tensor: Tensor) -> Tensor:
    """Return what `freeze` gives while a compiler traces it."""
    return _cloned(tensor, [], _with_handles())


def _with_handles() -> bool:
    return torch.is_grad_enabled() and is_tracing() and not exporting() and handles_work()


def _cloned(x: Any, known: list[tuple[Tensor, Tensor]], handles: bool) -> Any:
    """Return a copy of a tensor, or of a container around copies of its tensors."""
    if isinstance(x, Tensor):
        for original, made in known:
            if original is x:  # the same tensor twice is one handle: `query is key`
                return made
        made = x.clone()
        if handles and type(made) is Tensor:
            made = made.as_subclass(CompiledHandle)
        known.append((x, made))
        return made
    cls = type(x)
    if cls is dict or cls is OrderedDict:
        return cls([(key, _cloned(value, known, handles)) for key, value in x.items()])
    if cls is list:
        return [_cloned(value, known, handles) for value in x]
    if cls is tuple:
        return tuple([_cloned(value, known, handles) for value in x])
    if isinstance(x, tuple) and hasattr(cls, "_fields"):
        return cls(*[_cloned(value, known, handles) for value in x])
    return x


def _holds(out: Any) -> bool:
    """Tell whether there are handles in a result."""
    if isinstance(out, CompiledHandle):
        return True
    if isinstance(out, dict):
        return any(_holds(value) for value in cast("dict[Any, Any]", out).values())
    if isinstance(out, (list, tuple)):
        return any(_holds(value) for value in cast("list[Any]", out))
    if dataclasses.is_dataclass(out):
        return any(_holds(getattr(out, field.name)) for field in dataclasses.fields(out))
    return False


def _released(out: Any) -> Any:
    """Return a result with plain tensors for handles; dicts and lists are changed in place."""
    if isinstance(out, CompiledHandle):
        return plain(out)
    if not _holds(out):
        return out
    cls = type(out)
    if cls is tuple:
        return tuple([_released(value) for value in out])
    if isinstance(out, tuple):
        return cls(*[_released(value) for value in cast("tuple[Any, ...]", out)])
    if isinstance(out, dict):
        entries = cast("dict[Any, Any]", out)
        for key, value in list(entries.items()):
            entries[key] = _released(value)
    elif isinstance(out, list):
        items = cast("list[Any]", out)
        for i in range(len(items)):
            items[i] = _released(items[i])
    else:
        for field in dataclasses.fields(out):
            setattr(out, field.name, _released(getattr(out, field.name)))
    return out
