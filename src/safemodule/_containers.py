"""Containers that stand in for the caller's: a change goes to the stand-in, and on record.

They have the same items and the same behaviour.
A `dict` or `list` arrives as a `GuardedDict` or `GuardedList`; an instance of a subclass, or of a
dataclass, as an instance of a subclass made for its class. What cannot be changed (tuple,
namedtuple, frozen dataclass) arrives as its own type.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from safemodule import _report
from safemodule._compat import pytree_node, register_container
from safemodule._location import locate
from safemodule._modes import effective
from safemodule._state import module_name, written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from safemodule._state import Path, Plan

_GUARD = "_safemodule_guard"
_CHANGED = "_safemodule_changed"
_NOT_ATTRIBUTES = frozenset({_GUARD, _CHANGED, "__dict__", "__weakref__"})


Guard = tuple["Plan", type | None, "Path"]
"""Whose container it is: what the guarded function declares, the module's class, the argument."""


class _NoSubclassHook:
    """Keeps the user's `__init_subclass__` (registries) from hearing of our classes."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        del cls, kwargs


def set_guard(container: Any, guard: Guard | None) -> None:
    """Say whose stand-in it is."""
    object.__setattr__(container, _GUARD, guard)


def _guard_of(container: Any) -> Guard | None:
    try:
        return object.__getattribute__(container, _GUARD)
    except AttributeError:  # made by calling the class, as `type(batch)(...)` does: the user's own
        return None


def _changing(name: str, path: Callable[..., str]) -> Any:
    """Wrap a method that changes the container: refuse it in strict mode, else note it."""

    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            guard = _guard_of(self)
            if guard is None:
                return method(self, *args, **kwargs)
            plan, owner, argument = guard
            mode = effective(plan.mode)
            if mode == "off":
                return method(self, *args, **kwargs)
            facts: dict[str, Any] = {
                "op": name,
                "argument": written_out(argument) + path(*args),
                "module": module_name(plan, owner),
                "shape": (),
                "dtype": "",
                "device": "",
                "location": locate(),
                "bytes_copied": 0,
                "kind": "container",
            }
            if mode == "strict":
                _report.refuse(**facts)
            # One change may be made through others (`update` through `__setitem__`): noted once.
            set_guard(self, None)
            try:
                result = method(self, *args, **kwargs)
            finally:
                set_guard(self, guard)
            object.__setattr__(self, _CHANGED, True)
            _report.report(mode, **facts)
            return result

        return guarded

    return wrap


def _item(*args: Any) -> str:
    return f"[{args[0]!r}]" if args else ""


def _field(*args: Any) -> str:
    return f".{args[0]}"


def _whole(*args: Any) -> str:
    del args
    return ""


_DICT: dict[str, Any] = {
    "__setitem__": _item, "__delitem__": _item, "pop": _item, "setdefault": _item,
    "popitem": _whole, "update": _whole, "clear": _whole, "__ior__": _whole,
    "move_to_end": _item,
}  # fmt: skip
_LIST: dict[str, Any] = {
    "__setitem__": _item, "__delitem__": _item, "append": _whole, "extend": _whole,
    "insert": _whole, "remove": _whole, "pop": _whole, "clear": _whole, "sort": _whole,
    "reverse": _whole, "__iadd__": _whole, "__imul__": _whole,
}  # fmt: skip
_DEQUE: dict[str, Any] = _LIST | {
    "appendleft": _whole, "extendleft": _whole, "popleft": _whole, "rotate": _whole,
}  # fmt: skip
KEYED = (dict, list, deque)
_ATTRIBUTES: dict[str, Any] = {"__setattr__": _field, "__delattr__": _field}


def _plain_reduce(self: Any, protocol: Any) -> Any:
    return plain_copy(self).__reduce_ex__(protocol)


def _namespace(base: type, methods: dict[str, Any], **more: Any) -> dict[str, Any]:
    names: dict[str, Any] = {
        name: _changing(name, path)(getattr(base, name))
        for name, path in methods.items()
        if hasattr(base, name)
    }
    names |= {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        # `x.__class__ is Batch`, and what dataclasses compare, hold as for the caller's object.
        "__class__": property(lambda _: base),
        "__reduce_ex__": _plain_reduce,
        "__copy__": plain_copy,
        "_safemodule_base": base,
    }
    return names | more


@functools.cache
def guarded_class(base: type) -> type:
    """Return the class whose instances stand in for instances of `base`."""
    if is_guarded_class(base):  # the container of an outer call, given on to an inner one
        return base
    if issubclass(base, dict):
        methods: dict[str, Any] = dict(_DICT)
    elif issubclass(base, (list, deque)):
        methods = dict(_LIST if issubclass(base, list) else _DEQUE)
    else:
        methods = {}
    if dataclasses.is_dataclass(base) or "__setattr__" in base.__dict__:
        methods |= _ATTRIBUTES
    slots = () if base.__dictoffset__ else (_GUARD, _CHANGED)
    metaclass: Any = type(base)
    made = metaclass(
        base.__name__,
        (_NoSubclassHook, base),
        _namespace(base, methods, __slots__=slots),
    )
    node = pytree_node(base)
    if node is not None:
        register_container(made, node.flatten_fn, node.unflatten_fn)
    return made


def was_changed(container: Any) -> bool:
    """Tell whether an entry was set, added or removed."""
    try:
        return bool(object.__getattribute__(container, _CHANGED))
    except AttributeError:
        return False


def stand_in(
    original: Any, guard: Guard, item: Callable[[Any, Path], Any], made: Callable[[Any], None]
) -> Any:
    """Return the stand-in of a dict, list or dataclass, its items passed through `item`.

    Args:
        original: The caller's container.
        guard: Whose it is.
        item: Called with each item and its path; returns what stands in for it.
        made: Told the stand-in before it is filled: a container may hold itself.
    """
    twin = _rebuilt(original, guarded_class(type(original)), guard[2], item, made)
    set_guard(twin, guard)
    return twin


def plain_copy(container: Any) -> Any:
    """Return a shallow copy of a stand-in, of the class it stands for."""
    base = type(container)._safemodule_base
    return _rebuilt(container, base, "", lambda value, _: value, lambda _: None)


def _rebuilt(
    original: Any,
    cls: Any,
    path: Path,
    item: Callable[[Any, Path], Any],
    made: Callable[[Any], None],
) -> Any:
    twin = cls.__new__(cls) if isinstance(original, KEYED) else object.__new__(cls)
    made(twin)
    _copy_attributes(original, twin, path, item)
    if isinstance(original, defaultdict):
        twin.default_factory = original.default_factory
    if isinstance(original, dict):
        for key, value in items_of(original):
            put_item(twin, key, item(value, (path, "[%r]", key)))
    elif isinstance(original, list):
        list.extend(twin, [item(value, (path, "[%d]", i)) for i, value in items_of(original)])
    elif isinstance(original, deque):
        deque.__init__(twin, (), original.maxlen)
        deque.extend(twin, [item(value, (path, "[%d]", i)) for i, value in items_of(original)])
    return twin


def with_attributes(original: Any, path: Path, item: Callable[[Any, Path], Any]) -> Any:
    """Return a twin of a `UserDict` or frozen dataclass, its attributes passed through `item`.

    Args:
        original: The caller's container.
        path: Its path.
        item: Called with each attribute and its path; returns what stands in for it.
    """
    twin = object.__new__(type(original))
    _copy_attributes(original, twin, path, item)
    return twin


def _copy_attributes(
    original: Any, twin: Any, path: Path, item: Callable[[Any, Path], Any]
) -> None:
    for name, value in attributes_of(original):
        object.__setattr__(twin, name, item(value, (path, ".%s", name)))


def attributes_of(container: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a container's own attributes, slots included; not ours."""
    names = dict.fromkeys(getattr(container, "__dict__", ()))
    for cls in type(container).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    for name in names:
        if name not in _NOT_ATTRIBUTES:
            try:
                yield name, object.__getattribute__(container, name)
            except AttributeError:  # a slot that is not set
                continue


def items_of(container: Any) -> list[tuple[Any, Any]]:
    """Return keys (or positions) and values of a dict, list or deque, past any override."""
    if isinstance(container, deque):
        return list(enumerate(deque.__iter__(container)))
    if isinstance(container, list):
        return list(enumerate(list.__iter__(container)))
    ordered = isinstance(container, OrderedDict)
    keys = OrderedDict.__iter__(container) if ordered else dict.__iter__(container)
    return [(key, dict.__getitem__(container, key)) for key in keys]


def put_item(container: Any, key: Any, value: Any) -> None:
    """Set an item of a dict, list or deque, past any override."""
    base: Any = next(kind for kind in KEYED if isinstance(container, kind))
    if isinstance(container, OrderedDict):
        OrderedDict.__setitem__(container, key, value)
    else:
        base.__setitem__(container, key, value)


def is_guarded_class(cls: type) -> bool:
    """Tell whether instances of a class stand in for containers of a caller."""
    return "_safemodule_base" in cls.__dict__
