"""Which arguments does this call write?

Pure: nothing here runs an operator or reads a value. What a function does is worked out once, from
its kind, its name, its signature and its schema, and kept in `EFFECTS`; what one call writes is
then a matter of picking arguments.
"""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from safemodule import _writes_pick as pick
from safemodule import _writes_schema as schema_facts
from safemodule import _writes_tables as tables
from safemodule._writes_compat import schema_of
from safemodule._writes_pick import Target, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EFFECTS", "Effect", "Kind", "effect_of"]


class Kind(enum.Enum):
    """What calling a function can do to its tensor arguments."""

    READ = "read"
    WRITE = "write"
    METADATA = "metadata"
    EXPORT = "export"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a function does to its arguments.

    Attributes:
        name: The operator as the user knows it: ``add_``, ``__setitem__``, ``add(out=)``,
            ``relu(inplace=True)``, ``data=``.
        kind: ``WRITE`` when some call of it writes, whether or not this one does; ``METADATA``
            when it changes sizes or flags of the tensor object in place (which moves the version
            counter all the same); ``EXPORT`` when it hands out raw memory; ``STATE`` when it
            changes autograd state alone.
        written: From ``(args, kwargs)`` to the tensors that this call writes (``WRITE``) or whose
            memory it hands out (``EXPORT``); None for every other kind.
        may_alias: False when no result shares memory with an argument, other than one that this
            call writes: that may come back as it is.
        saves_result: For a call that writes under grad: False when autograd saves nothing of what
            was written for backward.
    """

    name: str
    kind: Kind
    written: Written | None = None
    may_alias: bool = True
    saves_result: bool = True


EFFECTS: dict[Any, Effect] = {}
# Several times the functions of PyTorch; a program that makes functions without end stops filling.
_MOST_EFFECTS = 16384

# The types of torch.ops.aten.relu and torch.ops.aten.relu.default.
_Packet: Any = type(torch.ops.aten.relu)
_Overload: Any = type(torch.ops.aten.relu.default)


def effect_of(func: Any) -> Effect:
    """Return what ``func``, as it arrives in ``__torch_function__``, does to its arguments.

    Args:
        func: A method, slot wrapper, builtin, Python function, bound ``__get__`` or ``__set__`` of
            an attribute, or a member of ``torch.ops``.

    Returns:
        The effect; the same object each time for the same function.

    Example:
        >>> import torch
        >>> effect = effect_of(torch.Tensor.add_)
        >>> effect.name, effect.kind.value
        ('add_', 'write')
        >>> x = torch.zeros(2)
        >>> effect.written((x, 1), {})[0] is x
        True
    """
    try:
        found = EFFECTS.get(func)
    except TypeError:  # unhashable
        return _examine(func)
    if found is None:
        found = _examine(func)
        if _may_be_kept(func) and len(EFFECTS) < _MOST_EFFECTS:
            EFFECTS[func] = found
    return found


def _may_be_kept(func: Any) -> bool:
    """Say whether ``func`` keeps no tensor alive, as a method bound to one would."""
    owner = getattr(func, "__self__", None)
    return not isinstance(func, MethodType) and not isinstance(owner, torch.Tensor)


def _examine(func: Any) -> Effect:
    if isinstance(func, _Overload):
        schema = schema_of(func)
        shown = str(func).removesuffix(".default")
        return _operator(shown, func.name().partition(".")[0], [] if schema is None else [schema])
    if isinstance(func, _Packet):
        qualified = str(func).replace(".", "::", 1)
        return _operator(str(func), qualified, schema_facts.schemas_of(qualified))
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        return _accessor(name, getattr(func, "__self__", None))
    named = _by_name(name, name)
    if named is not None:
        return named
    if isinstance(func, FunctionType):
        return _python_function(func, name)
    return _native(func, name)


def _by_name(name: str, shown: str) -> Effect | None:
    """Return the effect of a function whose name alone tells it."""
    if name in tables.METADATA:
        return Effect(shown, Kind.METADATA)
    if name in tables.STATE:
        return Effect(shown, Kind.STATE, may_alias=name not in tables.RESULT_IS_NO_TENSOR)
    if name in tables.EXPORT_OF_ARGUMENTS:
        return Effect(shown, Kind.EXPORT, pick.everything)
    if name in tables.EXPORT:
        return Effect(shown, Kind.EXPORT, pick.first)
    return None


def _accessor(access: str, descriptor: Any) -> Effect:
    """Judge a bound ``__get__``, ``__set__`` or ``__delete__`` of an attribute of tensors."""
    attribute = getattr(descriptor, "__name__", None)
    if attribute is None:  # a property
        attribute = getattr(getattr(descriptor, "fget", None), "__name__", "attribute")
    if access == "__get__":
        if attribute in tables.EXPORT:
            return Effect(attribute, Kind.EXPORT, pick.first)
        known = isinstance(descriptor, GetSetDescriptorType)
        may_alias = not known or attribute in tables.GETTERS_OF_TENSORS
        return Effect(attribute, Kind.READ, may_alias=may_alias, saves_result=False)
    name = f"{attribute}=" if access == "__set__" else f"del {attribute}"
    if attribute in tables.SETTERS_THAT_WRITE:
        return Effect(name, Kind.WRITE, pick.first, may_alias=False)
    kind = Kind.METADATA if attribute in tables.SETTERS_OF_METADATA else Kind.STATE
    return Effect(name, kind, may_alias=False)


def _native(func: Any, name: str) -> Effect:
    """Judge a method or a function written in C++."""
    schemas = schema_facts.schemas_of(f"aten::{name}")
    may_alias = not schema_facts.is_fresh(name)
    # out= is a keyword of the Python function, whatever its parts are called in the schema.
    targets = list(
        dict.fromkeys(
            target
            for schema in schemas
            for target in schema_facts.targets_of(schema)
            if target.position is not None
        )
    )
    special = _special_writer(name)
    if special is not None:
        return Effect(name, Kind.WRITE, special, may_alias=True, saves_result=_saves(name))
    if _is_in_place(name):
        if len({target.name for target in targets}) > 1:
            writer = pick.picked(targets)
        else:
            writer = pick.first_list if schema_facts.takes_lists(schemas) else pick.first
        return Effect(name, Kind.WRITE, writer, may_alias, _saves(name))
    if targets:
        shown = f"{name}{_flag_of(targets)}"
        writer = pick.union(pick.picked(targets), pick.out)
        return Effect(shown, Kind.WRITE, writer, may_alias)
    if isinstance(func, BuiltinFunctionType):
        return Effect(f"{name}(out=)", Kind.WRITE, pick.out, may_alias, saves_result=False)
    return Effect(name, Kind.READ, None, may_alias, saves_result=False)


def _operator(shown: str, qualified: str, schemas: Sequence[Any]) -> Effect:
    """Judge a member of ``torch.ops``, of PyTorch's or of another library."""
    namespace, _, base = qualified.partition("::")
    if namespace == "aten":
        named = _by_name(base, shown)
        if named is not None:
            return named
        special = _special_writer(base)
        if special is not None:
            return Effect(shown, Kind.WRITE, special, may_alias=True, saves_result=_saves(base))
    # Nobody tests the annotations of other libraries.
    may_alias = not (namespace == "aten" and schema_facts.is_fresh(base, schemas))
    saves = namespace != "aten" or _saves(base)
    if any(schema_facts.targets_of(schema) for schema in schemas):
        writer = pick.by_overload(schemas, schema_facts.targets_of)
        return Effect(shown, Kind.WRITE, writer, may_alias, saves)
    if _is_in_place(base) and base not in tables.STATE:  # c10d's schemas mark nothing
        return Effect(shown, Kind.WRITE, pick.first_list, may_alias, saves)
    if not schemas:  # torch does not tell: see `_writes_compat`
        return Effect(f"{shown}(out=)", Kind.WRITE, pick.out, may_alias, saves)
    return Effect(shown, Kind.READ, None, may_alias, saves_result=False)


def _python_function(func: FunctionType, name: str) -> Effect:
    """Judge a function written in Python, by its signature."""
    try:
        parameters = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        parameters = []
    shown = name.removeprefix("_") if func.__module__ == "torch.nn.functional" else name
    may_alias = name not in tables.FRESH_PYTHON.get(func.__module__, ())
    if func.__module__.startswith("torch.distributed") and name in tables.COLLECTIVES:
        target = tables.COLLECTIVES[name]
        index = parameters.index(target) if target in parameters else None
        return Effect(name, Kind.WRITE, pick.picked([Target(target, index)]))
    if name == "module_load":
        return Effect(name, Kind.WRITE, pick.module_load)
    if _is_in_place(name):
        writer = pick.picked([Target(parameters[0], 0)]) if parameters else pick.first
        return Effect(name, Kind.WRITE, writer, may_alias, _saves(name))
    if "inplace" in parameters:
        if name in tables.DROPOUTS:
            writer = pick.dropout_flag(parameters, tables.UNBATCHED.get(name))
        else:
            writer = pick.in_place_flag(parameters)
        return Effect(f"{shown}(inplace=True)", Kind.WRITE, writer, may_alias, _saves(f"{shown}_"))
    if {"max_norm", "weight", "input"}.issubset(parameters):
        return Effect(f"{shown}(max_norm=)", Kind.WRITE, pick.embedding(parameters), may_alias)
    targets = schema_facts.targets_of_parameters(name, parameters)
    if targets:
        flag = _flag_of(targets)
        shown = f"{shown}{flag or '(out=)'}"
        return Effect(shown, Kind.WRITE, pick.picked(targets), may_alias, saves_result=bool(flag))
    if "kwargs" in parameters:
        return Effect(f"{shown}(out=)", Kind.WRITE, pick.out, may_alias, saves_result=False)
    return Effect(shown, Kind.READ, None, may_alias, saves_result=False)


def _flag_of(targets: Sequence[Target]) -> str:
    """Return ``(training=True)`` if that is when running statistics are written, else nothing."""
    gates = [t.gate for t in targets if t.name in tables.STATISTICS and t.gate is not None]
    return f"({gates[0].name}=True)" if gates and gates[0].name else ""


def _special_writer(name: str) -> Written | None:
    """Return the writer of an in-place function that sometimes writes nothing."""
    if name.endswith("_") and name[:-1] in tables.DROPOUTS:
        return pick.dropout_
    return {"resize_": pick.resize_, "resize_as_": pick.resize_as_}.get(name)


def _is_in_place(name: str) -> bool:
    if name in tables.WRITES_FIRST:
        return True
    if name.startswith("__"):
        return name in tables.IN_PLACE_DUNDERS
    return name.endswith("_") and not name.endswith("__")


def _saves(name: str) -> bool:
    return tables.IN_PLACE_DUNDERS.get(name, name) not in tables.RESULT_NOT_SAVED
