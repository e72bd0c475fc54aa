"""A guarded call that runs without a compiler and calls something compiled.

Compiled code writes its inputs through their addresses, unseen. So a handle that crosses into it gets
memory of its own first, and crosses as the ordinary tensor that it is underneath: the compiled code is
the one that plain tensors would get. What it wrote shows in the version counter.
"""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from safemodule import _report
from safemodule._compat import interception_off, is_alias
from safemodule._compile_compat import adapt_compiled, mark_compiled
from safemodule._containers import (
    KEYED,
    attributes_of,
    is_guarded_class,
    items_of,
    plain_copy,
    put_item,
)
from safemodule._intercept import unmasked
from safemodule._location import locate
from safemodule._modes import effective
from safemodule._redirect import redirect
from safemodule._saved import maybe_saved
from safemodule._state import Root, handle_and_root
from safemodule._tensor import FrozenTensor
from safemodule._views import make_view

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_compiling: Any = torch.compiler.is_compiling


# Modules whose code a compiler traces: the way from a call of a guarded module into the original.
_TRACED = frozenset({"_compile", "_compile_tensor", "_guard_forward", "_module"})


def adapted(compiled: Any) -> Any:
    """Return a function made by `torch.compile` that takes handles."""
    # Does it write what it is given? None until it has been called with a handle.
    writes: list[bool | None] = [None]

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or not (_holds(args) or _holds(kwargs)):
            return compiled(*args, **kwargs)
        crossing = _Crossing(compiled.__name__, writes)
        given, named = crossing.prepare(args), crossing.prepare(kwargs)
        with unmasked(FrozenTensor, iter(crossing.handles)):
            out = compiled(*given, **named)
        crossing.finish(out)
        return out

    mark_compiled(call)
    return call


def _holds(value: Any) -> bool:
    """Tell whether there are handles in a value, or containers that stand in for the caller's."""
    cls = type(value)
    if cls is FrozenTensor or is_guarded_class(cls):
        return True
    if cls is Tensor:
        return False
    if isinstance(value, (list, tuple)):
        return any(_holds(item) for item in value)
    if isinstance(value, dict):
        return any(_holds(item) for item in value.values())
    return is_dataclass(cls) and any(_holds(item) for _, item in attributes_of(value))


class _Crossing:
    """One call of compiled code with handles among its arguments."""

    def __init__(self, name: str, writes: list[bool | None]) -> None:
        self.handles: list[Any] = []
        self._name = name
        self._writes = writes
        self._location = locate()
        self._roots: list[tuple[Any, Root, int, int]] = []
        """Handle, root, version before the call, bytes copied."""
        self._containers: list[tuple[Any, Any, _Entries]] = []
        """Stand-in, what was given instead, and its entries before the call."""

    # -- on the way in -----------------------------------------------------------------------------

    def prepare(self, value: Any) -> Any:
        """Make every handle in a value private; return the value with ordinary containers."""
        cls = type(value)
        if cls is FrozenTensor:
            self._tensor(value)
        elif is_guarded_class(cls):
            return self._stand_in(value)
        elif cls is tuple or cls is list:
            return cls([self.prepare(item) for item in value])
        elif isinstance(value, tuple) and hasattr(cls, "_make"):
            return cls._make([self.prepare(item) for item in value])
        elif cls is dict:
            return {key: self.prepare(item) for key, item in items_of(value)}
        elif is_dataclass(cls):
            for _, item in attributes_of(value):
                self.prepare(item)
        return value

    def _tensor(self, tensor: Any) -> None:
        if any(tensor is known for known in self.handles):
            return
        self.handles.append(tensor)
        handle, root = handle_and_root(tensor)
        if any(root is known for _, known, _, _ in self._roots):
            return
        copied = 0
        with root.locked(), interception_off():
            # Code that wrote nothing so far may get memory that autograd saved; if it writes now,
            # PyTorch refuses the gradient, as it does without the library.
            saved = self._writes[0] is not False and maybe_saved(FrozenTensor, handle, root)
            if saved or not root.private:
                copied = redirect(FrozenTensor, handle, root)
            self._roots.append((handle, root, handle._version, copied))
        if root.source is not None:  # what `mark_dynamic` and its kin noted
            for name, mark in vars(root.source).items():
                if name.startswith("_dynamo"):
                    setattr(handle, name, mark)

    def _stand_in(self, container: Any) -> Any:
        given = plain_copy(container)
        if isinstance(given, KEYED):
            for key, item in items_of(given):
                put_item(given, key, self.prepare(item))
        for name, item in attributes_of(given):
            object.__setattr__(given, name, self.prepare(item))
        self._containers.append((container, given, _entries(given)))
        return given

    # -- on the way out ----------------------------------------------------------------------------

    def finish(self, out: Any) -> None:
        """Report what was written, and make results that share memory with a handle its views."""
        for container, given, before in self._containers:
            self._bring_back(container, before, _entries(given))
        wrote = False
        for handle, root, version, copied in self._roots:
            with interception_off():
                if handle._version != version:
                    wrote = root.written = True
                    root.saved |= torch.is_grad_enabled()
                    self._report(handle, root, copied)
                elif copied:
                    _report.export(**self._facts(handle, root, copied))
        self._writes[0] = wrote or bool(self._writes[0])
        self._adopt(out)

    def _facts(self, handle: Any, root: Root, copied: int) -> Any:
        return {
            "op": f"{self._name} (compiled)",
            "argument": root.argument,
            "module": root.module,
            "shape": tuple(handle.shape),
            "dtype": str(handle.dtype),
            "device": str(handle.device),
            "location": self._location,
            "bytes_copied": copied,
        }

    def _report(self, handle: Any, root: Root, copied: int) -> None:
        mode = effective(root.plan.mode)
        if mode == "strict":
            _report.refuse(**self._facts(handle, root, copied))
        elif mode != "off":
            _report.report(mode, **self._facts(handle, root, copied))

    def _bring_back(self, container: Any, before: _Entries, after: _Entries) -> None:
        """Change a stand-in as the compiled code changed what it got for it."""
        originals = {id(given): stand_in for stand_in, given, _ in self._containers}
        if isinstance(container, dict):
            gone, new = _difference(before.items, after.items)
            for key in gone:
                del container[key]
            for key, item in new.items():
                container[key] = originals.get(id(item), item)
        elif list(map(id, before.items.values())) != list(map(id, after.items.values())):
            items = [originals.get(id(item), item) for item in after.items.values()]
            container.clear()
            container.extend(items)
        gone, new = _difference(before.attributes, after.attributes)
        for name in gone:
            delattr(container, name)
        for name, item in new.items():
            setattr(container, name, originals.get(id(item), item))

    def _adopt(self, out: Any) -> None:
        if isinstance(out, (list, tuple)):
            for item in out:
                self._adopt(item)
        elif isinstance(out, dict):
            for item in out.values():
                self._adopt(item)
        elif type(out) is Tensor and out.layout is torch.strided:
            for handle, _, _, _ in self._roots:
                if is_alias(handle, out) and out.dtype == handle.dtype:
                    place = (tuple(out.shape), out.stride(), out.storage_offset())
                    make_view(FrozenTensor, out, handle, torch.as_strided, (handle, *place), None)
                    return
        elif is_dataclass(type(out)):
            for _, item in attributes_of(out):
                self._adopt(item)


class _Entries(NamedTuple):
    """What a container holds."""

    items: dict[Any, Any]
    attributes: dict[str, Any]


def _entries(container: Any) -> _Entries:
    items = items_of(container) if isinstance(container, KEYED) else ()
    return _Entries(dict(items), dict(attributes_of(container)))


def _difference(before: dict[Any, Any], after: dict[Any, Any]) -> tuple[list[Any], dict[Any, Any]]:
    """Return the keys that are gone, and the entries that are new."""
    gone = [key for key in before if key not in after]
    new = {k: v for k, v in after.items() if k not in before or before[k] is not v}
    return gone, new


def _own_code() -> Iterator[types.CodeType]:
    """Yield the code of the mechanism, which works on handles."""
    for name, module in list(sys.modules.items()):
        package, _, own = name.partition(".")
        if package == __package__ and own not in _TRACED:
            for value in list(vars(module).values()):
                yield from _codes(value, name)


def _codes(value: Any, module: str) -> Iterator[types.CodeType]:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    if getattr(value, "__module__", None) != module:
        return
    if isinstance(value, types.FunctionType):
        yield value.__code__
        if value is adapted:
            yield from (c for c in value.__code__.co_consts if isinstance(c, types.CodeType))
    elif isinstance(value, type):
        for item in vars(value).values():
            yield from _codes(item, module)


def install() -> None:
    """Adapt what `torch.compile` will make from now on."""
    adapt_compiled(adapted, FrozenTensor, _own_code)
