"""Which arguments does this call write?

Pure: nothing here runs an operator, reads a value or touches an attribute of a tensor argument. What a
function does is worked out once, from its kind, its name, its signature and its schema, and kept
in `EFFECTS`; what one call writes is then a matter of picking arguments.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from safemodule import _writes_tables as tables

__all__ = ["EFFECTS", "Effect", "Kind", "effect_of"]

Written = Callable[[tuple[Any, ...], dict[str, Any]], Sequence[object]]

# Private names of torch -----------------------------------------------------------------------

# The schemas say which arguments a function writes and which results are views. Without them a
# function is judged by its name and its results are checked for aliases.
_schemas_of = getattr(torch._C, "_jit_get_schemas_for_operator", lambda _name: [])
# Composite functions carry no alias annotation that can be trusted.
_has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda _name, _key: True)
# torch.ops.aten.add and torch.ops.aten.add.Tensor.
_Packet = torch._ops.OpOverloadPacket
_Overload = torch._ops.OpOverload

# ----------------------------------------------------------------------------------------------


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
        kind: ``WRITE`` when some call of it writes, whether or not this one does.
        written: For ``WRITE``: from positional and keyword arguments to the tensors this call
            writes (``kwargs`` may be empty, not None). None for every other kind.
        may_alias: False when no result shares memory with an argument, other than an argument
            that this call writes, which may come back as it is.
        saves_result: For an in-place operator under grad: False when autograd saves nothing of
            the operator's own result.
    """

    name: str
    kind: Kind
    written: Written | None = None
    may_alias: bool = True
    saves_result: bool = True


EFFECTS: dict[Any, Effect] = {}
# More than every function of PyTorch; a program that makes functions without end is not kept alive.
_MOST_EFFECTS = 16384


def effect_of(func: Any) -> Effect:
    """Return what ``func``, as it arrives in ``__torch_function__``, does to its arguments.

    Args:
        func: A method, slot wrapper, builtin, Python function, bound ``__get__`` or ``__set__`` of
            an attribute, or a member of ``torch.ops``.

    Returns:
        The effect, the same object for the same function.

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
        if _is_lasting(func) and len(EFFECTS) < _MOST_EFFECTS:
            EFFECTS[func] = found
    return found


def _is_lasting(func: Any) -> bool:
    """Say whether keeping ``func`` keeps no tensor alive (a bound method of one would)."""
    owner = getattr(func, "__self__", None)
    return not isinstance(func, MethodType) and not isinstance(owner, torch.Tensor)


def _examine(func: Any) -> Effect:
    if isinstance(func, _Overload):
        name = str(func).removesuffix(".default")
        return _from_schemas(name, func._schema.name, [func._schema])
    if isinstance(func, _Packet):
        schemas = [getattr(func, overload)._schema for overload in func.overloads()]
        return _from_schemas(str(func), func._qualified_op_name, schemas)
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        return _accessor(name, getattr(func, "__self__", None))
    if name in tables.METADATA:
        return Effect(name, Kind.METADATA, may_alias=True)
    if name in tables.STATE:
        return Effect(name, Kind.STATE, may_alias=not _is_fresh(name))
    if name in tables.EXPORT:
        return Effect(name, Kind.EXPORT, may_alias=True)
    if isinstance(func, FunctionType):
        return _python_function(func, name)
    return _native(func, name)


def _accessor(access: str, descriptor: Any) -> Effect:
    attribute = getattr(descriptor, "__name__", None)
    if attribute is None:  # a property
        attribute = getattr(getattr(descriptor, "fget", None), "__name__", "attribute")
    if access == "__get__":
        if attribute in tables.EXPORT:
            return Effect(attribute, Kind.EXPORT)
        return Effect(attribute, Kind.READ, may_alias=attribute in tables.GETTERS_OF_TENSORS)
    name = f"{attribute}=" if access == "__set__" else f"del {attribute}"
    if attribute in tables.SETTERS_THAT_WRITE:
        return Effect(name, Kind.WRITE, _first, may_alias=False)
    kind = Kind.METADATA if attribute in tables.SETTERS_OF_METADATA else Kind.STATE
    return Effect(name, kind, may_alias=False)


# Builtins and methods ---------------------------------------------------------------------------


def _native(func: Any, name: str) -> Effect:
    schemas = [s for s in _schemas_of(f"aten::{name}") if _mentions_tensors(s)]
    may_alias = not _is_fresh(name)
    norm = _norm_statistics(name, [[a.name for a in s.arguments] for s in schemas])
    if norm is not None:
        return Effect(f"{name}(training=True)", Kind.WRITE, _also_out(norm), may_alias)
    if name.removesuffix("_") in tables.DROPOUTS and name.endswith("_"):
        return Effect(name, Kind.WRITE, _dropout_, may_alias=True)
    found: dict[str, int | None] = {}
    for schema in schemas:
        for argument, index in _written_of(schema):
            if index is not None:  # out= is looked for anyway
                found.setdefault(argument, index)
    if _is_in_place(name):
        if len(found) > 1:
            return Effect(name, Kind.WRITE, _unless_scaled(_picked(found)), may_alias)
        saves = _in_place_name(name) not in tables.RESULT_NOT_SAVED
        return Effect(name, Kind.WRITE, _writer_of_first(schemas), may_alias, saves)
    if found and not name.endswith("_"):
        positional = {
            a: i
            for s in schemas
            if not s.overload_name.endswith("out")
            for a, i in _written_of(s)
            if i is not None
        }
        if positional:
            return Effect(name, Kind.WRITE, _also_out(_picked(positional)), may_alias)
    if isinstance(func, BuiltinFunctionType):
        return Effect(f"{name}(out=)", Kind.WRITE, _out, may_alias, saves_result=False)
    return Effect(name, Kind.READ, None, may_alias, saves_result=False)


def _is_in_place(name: str) -> bool:
    if name.startswith("__"):
        return name in tables.WRITES_FIRST or _in_place_name(name) != name
    return name in tables.WRITES_FIRST or name.endswith("_")


def _in_place_name(name: str) -> str:
    """Return ``add_`` for ``__iadd__``, and any other name as it is."""
    if name.startswith("__i") and name.endswith("__"):
        plain = name[3:-2]
        if plain not in ("nt", "ndex", "nvert", "ter", "nit", "nit_subclass"):
            return f"{plain}_"
    return name


def _writer_of_first(schemas: Iterable[Any]) -> Written:
    lists = any(s.arguments and "List" in str(s.arguments[0].type) for s in schemas)
    return _first_list if lists else _first


def _mentions_tensors(schema: Any) -> bool:
    return any("Tensor" in str(a.type) for a in (*schema.arguments, *schema.returns))


def _written_of(schema: Any) -> list[tuple[str, int | None]]:
    """Return name and position (None: keyword-only) of each argument that the schema writes."""
    return [
        (argument.name, None if argument.kwarg_only else index)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and "Tensor" in str(argument.type)
    ]


def _is_fresh(name: str, schemas: Sequence[Any] | None = None) -> bool:
    """Say whether no result of the ATen function ``name`` can be a view of an argument."""
    if name in tables.ALIAS_IN_SPITE_OF_SCHEMA:
        return False
    if name in tables.NO_TENSOR_RESULT:
        return True
    if schemas is None:
        schemas = _schemas_of(f"aten::{name}")
        if not schemas and name.startswith("__"):
            plain = name.strip("_")
            return any(
                _schemas_of(f"aten::{n}") and _is_fresh(n) for n in (plain, plain.lstrip("r"))
            )
    schemas = [s for s in schemas if any("Tensor" in str(a.type) for a in s.arguments)]
    if not schemas:
        return False
    for schema in schemas:
        results = [r for r in schema.returns if "Tensor" in str(r.type)]
        if any(r.alias_info is not None and not r.alias_info.is_write for r in results):
            return False
        unmarked = [r for r in results if r.alias_info is None]
        if unmarked and name not in tables.FRESH_COMPOSITES and _is_composite(schema):
            return False
    return True


def _is_composite(schema: Any) -> bool:
    name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    try:
        return _has_kernel(name, "CompositeImplicitAutograd")
    except RuntimeError:  # not an operator of the dispatcher
        return True


# torch.ops --------------------------------------------------------------------------------------


def _from_schemas(name: str, qualified: str, schemas: Sequence[Any]) -> Effect:
    namespace, _, base = qualified.partition("::")
    native = namespace == "aten"
    if native and base in tables.METADATA:
        return Effect(name, Kind.METADATA)
    if base in tables.STATE:
        return Effect(name, Kind.STATE)
    # Operators of other libraries are not held to their annotations by any test of PyTorch's.
    may_alias = not (native and _is_fresh(base, schemas))
    saves = not (native and base in tables.RESULT_NOT_SAVED)
    norm = _norm_statistics(base, [[a.name for a in s.arguments] for s in schemas])
    if norm is not None:
        return Effect(
            name, Kind.WRITE, _union(norm, _by_schema(schemas, skip_stats=True)), may_alias
        )
    if native and base.endswith("_") and base.removesuffix("_") in tables.DROPOUTS:
        return Effect(name, Kind.WRITE, _dropout_, may_alias=True)
    if any(_written_of(schema) for schema in schemas):
        return Effect(name, Kind.WRITE, _unless_scaled(_by_schema(schemas)), may_alias, saves)
    if base.endswith("_") and not base.endswith("__"):  # c10d's schemas carry no annotation
        return Effect(name, Kind.WRITE, _first_list, may_alias, saves)
    return Effect(name, Kind.READ, None, may_alias, saves_result=False)


def _by_schema(schemas: Sequence[Any], *, skip_stats: bool = False) -> Written:
    """Return a writer that picks by the overloads that these arguments fit."""
    overloads = []
    for schema in schemas:
        names = [a.name for a in schema.arguments]
        positional = sum(not a.kwarg_only for a in schema.arguments)
        required = [i for i, a in enumerate(schema.arguments) if not a.has_default_value()]
        written = [
            (n, i)
            for n, i in _written_of(schema)
            if not (skip_stats and n in ("running_mean", "running_var"))
        ]
        overloads.append((names, frozenset(names), positional, required, written))

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        found: list[object] = []
        for names, known, positional, required, targets in overloads:
            if len(args) > positional or not known.issuperset(kwargs):
                continue
            if any(i >= len(args) and names[i] not in kwargs for i in required):
                continue
            for name, index in targets:
                _collect(_get(args, kwargs, index, name), found)
        return found

    return written


# Python functions -------------------------------------------------------------------------------


def _python_function(func: FunctionType, name: str) -> Effect:
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        names = []
    at = {parameter: index for index, parameter in enumerate(names)}
    shown = name.removeprefix("_") if func.__module__ == "torch.nn.functional" else name
    may_alias = _python_may_alias(func, name)
    if func.__module__.startswith("torch.distributed") and name in tables.COLLECTIVES:
        target = tables.COLLECTIVES[name]
        return Effect(name, Kind.WRITE, _picked({target: at.get(target)}))
    norm = _norm_statistics(name, [names])
    if norm is not None:
        flag = "use_input_stats" if "use_input_stats" in at else "training"
        return Effect(f"{shown}({flag}=True)", Kind.WRITE, norm, may_alias)
    if "max_norm" in at and "weight" in at:
        return Effect(f"{shown}(max_norm=)", Kind.WRITE, _embedding(at), may_alias)
    if name == "module_load":
        return Effect(name, Kind.WRITE, _unless(_first, at.get("assign"), "assign"))
    if "inplace" in at:
        writer = _in_place_flag(at, names[0], dropout=name in tables.DROPOUTS)
        saves = f"{shown}_" not in tables.RESULT_NOT_SAVED
        return Effect(f"{shown}(inplace=True)", Kind.WRITE, writer, may_alias, saves)
    if _is_in_place(name):
        saves = _in_place_name(name) not in tables.RESULT_NOT_SAVED
        return Effect(name, Kind.WRITE, _named_first(names), may_alias, saves)
    if "out" in at:
        writer = _picked({"out": at["out"]})
        return Effect(f"{shown}(out=)", Kind.WRITE, writer, may_alias, saves_result=False)
    if "kwargs" in at:
        return Effect(f"{shown}(out=)", Kind.WRITE, _out, may_alias, saves_result=False)
    return Effect(shown, Kind.READ, None, may_alias, saves_result=False)


def _python_may_alias(func: FunctionType, name: str) -> bool:
    if func.__module__ == "torch.nn.functional":
        return name not in tables.FRESH_FUNCTIONALS
    if func.__module__ == "torch._tensor":
        return name not in tables.NO_TENSOR_RESULT and not name.endswith("_")
    return True


# Writers ----------------------------------------------------------------------------------------


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
    return (args[0],) if args else _first_keyword(kwargs)


def _first_keyword(kwargs: dict[str, Any]) -> Sequence[object]:
    for name in ("self", "input", "tensor"):
        if name in kwargs:
            return (kwargs[name],)
    return ()


def _named_first(names: Sequence[str]) -> Written:
    first = names[0] if names else "self"

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        if args:
            return (args[0],)
        return (kwargs[first],) if first in kwargs else ()

    return written


def _first_list(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
    return _flat(args[0]) if args else _flat(next(iter(kwargs.values()), None))


def _out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
    return _flat(kwargs["out"]) if "out" in kwargs else ()


def _flat(value: Any) -> Sequence[object]:
    found: list[object] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[object]) -> None:
    if isinstance(value, torch.Tensor):
        if not any(value is known for known in found):
            found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def _get(
    args: tuple[Any, ...], kwargs: dict[str, Any], index: int | None, name: str, default: Any = None
) -> Any:
    if index is not None and index < len(args):
        return args[index]
    return kwargs.get(name, default)


def _picked(targets: dict[str, int | None]) -> Written:
    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        found: list[object] = []
        for name, index in targets.items():
            _collect(_get(args, kwargs, index, name), found)
        return found

    return written


def _union(one: Written, other: Written) -> Written:
    return lambda args, kwargs: [*one(args, kwargs), *other(args, kwargs)]


def _also_out(writer: Written) -> Written:
    return _union(writer, _out)


def _unless(writer: Written, index: int | None, flag: str) -> Written:
    return lambda args, kwargs: () if _get(args, kwargs, index, flag) else writer(args, kwargs)


def _unless_scaled(writer: Written) -> Written:
    return writer


def _in_place_flag(at: dict[str, int], first: str, *, dropout: bool) -> Written:
    inplace = at["inplace"]
    training, p = at.get("training"), at.get("p")

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        if not _get(args, kwargs, inplace, "inplace"):
            return ()
        if dropout and not (
            _get(args, kwargs, training, "training", True) and _get(args, kwargs, p, "p", 0.5) != 0
        ):
            return ()
        return (args[0],) if args else (kwargs[first],)

    return written


def _dropout_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
    """torch.dropout_(input, p, train) and its kin."""
    if _get(args, kwargs, 1, "p", 0.5) == 0 or not _get(args, kwargs, 2, "train", True):
        return ()
    return _first(args, kwargs)


def _embedding(at: dict[str, int]) -> Written:
    max_norm, weight = at["max_norm"], at["weight"]

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        if _get(args, kwargs, max_norm, "max_norm") is None:
            return ()
        return _flat(_get(args, kwargs, weight, "weight"))

    return written


def _norm_statistics(name: str, signatures: Sequence[Sequence[str]]) -> Written | None:
    """Return the writer of running statistics if ``name`` is a batch or instance norm."""
    if "batch_norm" not in name and "instance_norm" not in name:
        return None
    if any(part in name for part in ("backward", "functional", "no_training", "elemt")):
        return None
    rules = []
    for names in signatures:
        at = {parameter: index for index, parameter in enumerate(names)}
        if "running_mean" not in at or "running_var" not in at:
            continue
        flag = next((f for f in ("training", "train", "use_input_stats") if f in at), None)
        if flag is None and "update" not in name and "gather_stats" not in name:
            continue
        rules.append((at["running_mean"], at["running_var"], flag, at.get(flag or "")))
    if not rules:
        return None
    mean, var, flag, flag_at = rules[0]
    default = flag == "use_input_stats"

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        if flag is not None and not _get(args, kwargs, flag_at, flag, default):
            return ()
        found: list[object] = []
        _collect(_get(args, kwargs, mean, "running_mean"), found)
        _collect(_get(args, kwargs, var, "running_var"), found)
        return found

    return written
