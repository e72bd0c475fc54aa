"""How each kind of container is rebuilt around the handles, and given back.

A maker takes the call, the caller's container and its path, and returns what stands in for it. It
is looked up once per type.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence

from safemodule._compat import pytree_node
from safemodule._containers import (
    guarded_class,
    is_guarded_class,
    set_guard,
    stand_in,
    with_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from safemodule._call import Call
    from safemodule._state import Path

    Maker = Callable[[Call, Any, Path], Any]


@functools.lru_cache(maxsize=4096)
def maker_of(cls: type) -> Maker | None:
    """Return the maker for a type; None for what is passed through as it is."""
    if cls in (torch.Size, type(None)) or (isinstance(cls, type) and issubclass(cls, type)):
        return None
    if issubclass(cls, tuple):
        if issubclass(cls, PackedSequence):
            return _packed
        if hasattr(cls, "_fields") and hasattr(cls, "_make"):
            return _named_tuple
        if hasattr(cls, "n_sequence_fields"):  # torch.return_types.max and the like
            return _struct_sequence
        return _tuple if cls is tuple else _by_pytree if pytree_node(cls) else None
    if cls is dict:
        return _dict
    if cls is list:
        return _list
    if issubclass(cls, (dict, list, collections.deque)) or (is_guarded_class(cls)):
        return _stand_in
    if issubclass(cls, (collections.UserDict, collections.UserList)):
        return _attributes
    if pytree_node(cls) is not None:
        return _by_pytree
    if dataclasses.is_dataclass(cls):
        frozen: bool = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return _attributes if frozen else _stand_in
    return None


def _dict(call: Call, x: Any, path: Path) -> Any:
    twin = _GUARDED_DICT()
    set_guard(twin, (call.plan, call.owner, path))
    call.stand_ins[id(x)] = (x, twin)  # before it is filled: it may hold itself
    protect = call.protect
    dict.update(twin, {key: protect(value, (path, "[%r]", key)) for key, value in x.items()})
    return twin


def _list(call: Call, x: Any, path: Path) -> Any:
    twin = _GUARDED_LIST()
    set_guard(twin, (call.plan, call.owner, path))
    call.stand_ins[id(x)] = (x, twin)
    protect = call.protect
    list.extend(twin, [protect(item, (path, "[%d]", i)) for i, item in enumerate(x)])
    return twin


_GUARDED_DICT, _GUARDED_LIST = guarded_class(dict), guarded_class(list)


def _stand_in(call: Call, x: Any, path: Path) -> Any:
    def made(twin: Any) -> None:
        call.stand_ins[id(x)] = (x, twin)

    return stand_in(x, (call.plan, call.owner, path), call.protect, made)


def _attributes(call: Call, x: Any, path: Path) -> Any:
    return with_attributes(x, path, call.protect)


def _tuple(call: Call, x: Any, path: Path) -> Any:
    items = [call.protect(item, (path, "[%d]", i)) for i, item in enumerate(x)]
    return x if _same(items, x) else tuple(items)


def _named_tuple(call: Call, x: Any, path: Path) -> Any:
    items = [
        call.protect(item, (path, ".%s", name)) for name, item in zip(x._fields, x, strict=True)
    ]
    return x if _same(items, x) else type(x)._make(items)


def _struct_sequence(call: Call, x: Any, path: Path) -> Any:
    items = [call.protect(item, (path, "[%d]", i)) for i, item in enumerate(x)]
    return x if _same(items, x) else type(x)(items)


def _packed(call: Call, x: Any, path: Path) -> Any:
    # Its constructor looks at values; the tuple below it does not.
    items = [
        call.protect(item, (path, ".%s", name)) for name, item in zip(x._fields, x, strict=True)
    ]
    return tuple.__new__(type(x), items)


def _by_pytree(call: Call, x: Any, path: Path) -> Any:
    node = pytree_node(type(x))
    children, context = node.flatten_fn(x)
    items = [call.protect(child, (path, "[%d]", i)) for i, child in enumerate(children)]
    return node.unflatten_fn(items, context)  # also without a tensor: it may be changed itself


def _same(items: Any, originals: Any) -> bool:
    return all(a is b for a, b in zip(items, originals, strict=True))
