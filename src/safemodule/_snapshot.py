"""What a nested value looked like, to compare with later.

A walk visits every object once, however often it is reachable, and notes what may change about it:
properties by name, numbers, and the parts it holds, by identity.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from safemodule._snapshot_values import ArrayValues, TensorValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Snapshot"]

# They hold nothing that is an input, or a state that is their own business (modules).
_ATOMS: Final = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, types.ModuleType,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.dtype, torch.device,
    torch.layout, torch.Size, torch.Generator, torch.nn.Module,
)  # fmt: skip
_MISSING: Final = object()
_PROPERTIES: Final[dict[str, Callable[[Any], Any]]] = {
    "shape": lambda x: tuple(x.shape),
    "strides": lambda x: x.stride(),
    "offset": lambda x: x.storage_offset(),
    "storage": lambda x: hex(x.untyped_storage().data_ptr()),
    "dtype": lambda x: x.dtype,
    "device": lambda x: x.device,
    "layout": lambda x: x.layout,
    "requires_grad": lambda x: x.requires_grad,
    "is_leaf": lambda x: x.is_leaf,
    "retains_grad": lambda x: x.retains_grad,
    "grad_fn": lambda x: None if x.grad_fn is None else x.grad_fn.name(),
    # Where torch still has named tensors, one without names answers a None for each dimension.
    "names": lambda x: x.names if any(x.names) else None,
    "is_conj": lambda x: x.is_conj(),
    "is_neg": lambda x: x.is_neg(),
    "version": lambda x: x._version,
}


class _Facts(NamedTuple):
    """What there is to know about one object."""

    properties: dict[str, Any]
    """Compared with `==`."""
    values: TensorValues | ArrayValues | None
    parts: dict[str, Any]
    """What it holds, by the step that leads there."""


class Snapshot:
    """Values, flags and structure of everything reachable from some named values.

    Args:
        values: The values by name.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._seen: dict[int, tuple[str, Any, _Facts]] = {}
        waiting = list(values.items())[::-1]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            facts = _facts(value)
            self._seen[id(value)] = (path, value, facts)
            waiting += [(path + step, part) for step, part in facts.parts.items()][::-1]

    def changes(self) -> list[str]:
        """Return what has changed since, each change with its path, in the order of the walk."""
        found: list[str] = []
        for path, value, before in self._seen.values():
            now = _facts(value)
            found += [f"{path}: {change}" for change in _own_changes(before, now)]
            found += [f"{path}{change}" for change in _changed_parts(before.parts, now.parts)]
        return found


def _own_changes(before: _Facts, now: _Facts) -> Iterator[str]:
    if before.values is not None and before.properties["shape"] == now.properties["shape"]:
        difference = before.values.difference(now.values)  # type: ignore[arg-type] # of one type
        if difference is not None:
            yield difference
    for name, was in before.properties.items():
        if was != now.properties[name]:
            yield f"{name} {was} -> {now.properties[name]}"


def _changed_parts(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    changed = False
    for step, part in before.items():
        after = now.get(step, _MISSING)
        if after is _MISSING:
            changed = True
            yield f"{step}: was removed"
        elif after is not part and not _same_atom(part, after):
            changed = True
            yield f"{step}: is another object"
    for step in now:
        if step not in before:
            changed = True
            yield f"{step}: was added"
    if not changed and list(before) != list(now):
        yield ": the order of its items has changed"


def _same_atom(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or not isinstance(a, _ATOMS):
        return False
    return bool(a == b or (a != a and b != b))  # noqa: PLR0124 -- NaN


def _facts(value: Any) -> _Facts:
    if isinstance(value, Tensor):
        properties = {name: _ask(read, value) for name, read in _PROPERTIES.items()}
        # What begins with an underscore are caches of tensor subclasses.
        named = _attributes(value)
        parts = {f".{name}": part for name, part in named if not name.startswith("_")}
        if properties["is_leaf"] and value.grad is not None:
            parts[".grad"] = value.grad
        return _Facts(properties, TensorValues(value), parts)
    if _is_array(value):
        return _facts_of_array(value)
    parts = {f".{name}": part for name, part in _attributes(value)}
    parts |= dict(_items(value))
    properties = {"type": type(value).__qualname__}
    if isinstance(value, bytearray):
        properties["bytes"] = value.hex()
    return _Facts(properties, None, parts)


def _ask(read: Callable[[Any], Any], tensor: Tensor) -> Any:
    try:
        return read(tensor)
    except (RuntimeError, NotImplementedError, AttributeError):  # not every tensor has everything
        return None


def _facts_of_array(array: Any) -> _Facts:
    properties = {
        "shape": array.shape,
        "strides": array.strides,
        "dtype": array.dtype,
        "writeable": array.flags.writeable,
    }
    if array.dtype.hasobject:
        return _Facts(properties, None, {f".flat[{i}]": item for i, item in enumerate(array.flat)})
    return _Facts(properties, ArrayValues(array), {})


def _is_array(value: Any) -> bool:
    # numpy need not be installed, and is not imported for this.
    return any(
        base.__module__ == "numpy" and base.__name__ == "ndarray" for base in type(value).__mro__
    )


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, each with the step that leads there."""
    if isinstance(value, dict):
        for key in dict[Any, Any].__iter__(value):
            yield f"[{key!r}]", dict[Any, Any].__getitem__(value, key)
    elif isinstance(value, (list, tuple, collections.deque)):
        names: tuple[str, ...] = getattr(value, "_fields", ())
        for i, part in enumerate(tuple[Any, ...](value)):
            yield f".{names[i]}" if i < len(names) else f"[{i}]", part
    elif isinstance(value, (set, frozenset)):
        for part in tuple[Any, ...](value):
            yield f"{{{part!r}}}", part


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's own attributes, slots included."""
    yield from dict(getattr(value, "__dict__", {})).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                try:
                    yield name, getattr(value, name)
                except AttributeError:  # not set
                    continue
