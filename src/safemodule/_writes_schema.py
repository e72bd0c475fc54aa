"""What the schemas of operators say: which arguments are written, which results are new memory.

A schema is text such as ``aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)``: ``!``
marks what is written, ``a`` without it a view. What schemas leave out stands in `_writes_tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safemodule import _writes_tables as tables
from safemodule._writes_compat import find_schemas, has_kernel
from safemodule._writes_pick import Gate, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def schemas_of(qualified: str) -> list[Any]:
    """Return the schemas of ``aten::add``: those that take or return tensors."""
    found: list[Any] = []
    for schema in find_schemas(qualified):
        arguments = [str(argument.type) for argument in schema.arguments]
        # List and dict methods of TorchScript share names with operators: pop, sort, __getitem__.
        if any(kind.startswith("Dict") for kind in arguments):
            continue
        if is_composite(schema) is not None or "Tensor" in arguments:
            found.append(schema)
    return found


def is_composite(schema: Any) -> bool | None:
    """Say whether an operator is composed of others; None if the dispatcher does not know it."""
    name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    try:
        return bool(has_kernel(name, "CompositeImplicitAutograd"))
    except RuntimeError:
        return None


def is_tensor(argument: Any) -> bool:
    """Say whether an argument or a result is a tensor, or holds some."""
    return "Tensor" in str(argument.type)


def takes_lists(schemas: Iterable[Any]) -> bool:
    """Say whether the first argument is a list of tensors."""
    return any(s.arguments and "List" in str(s.arguments[0].type) for s in schemas)


def targets_of(schema: Any) -> list[Target]:
    """Return the arguments an operator writes, by its schema and by what schemas leave out."""
    arguments = schema.arguments
    at = {argument.name: index for index, argument in enumerate(arguments)}
    statistics = _gate_of_statistics(schema.name, at)
    found: list[Target] = []
    for index, argument in enumerate(arguments):
        name = argument.name
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if name in tables.STATISTICS and statistics is not None:
            found.append(Target(name, index, statistics))
        elif marked and is_tensor(argument):
            # A fused optimiser writes the gradients back only when it unscales them.
            gate = Gate("grad_scale", None, None) if name == "grads" else None
            found.append(Target(name, None if argument.kwarg_only else index, gate))
    return found


def targets_of_parameters(name: str, parameters: Sequence[str]) -> list[Target]:
    """Return the arguments that a function of this name and these parameters writes, but its own.

    Own: what ``add_`` or ``relu(inplace=True)`` do to their first argument.
    """
    at = {parameter: index for index, parameter in enumerate(parameters)}
    statistics = _gate_of_statistics(name, at)
    if statistics is not None:
        return [Target(n, at[n], statistics) for n in tables.STATISTICS if n in at]
    return [Target("out", at["out"])] if "out" in at else []


def _gate_of_statistics(name: str, at: dict[str, int]) -> Gate | None:
    """Return when a batch or instance norm updates its running statistics; None if never.

    Hardly any schema marks them as written, and one marks them in evaluation as well.
    """
    if "running_mean" not in at or not ("batch_norm" in name or "instance_norm" in name):
        return None
    if any(part in name for part in ("backward", "elemt", "functional", "no_training")):
        return None
    for flag, default in (("training", False), ("train", False), ("use_input_stats", True)):
        if flag in at:
            return Gate(flag, at[flag], default)
    return Gate.always() if "update" in name or "gather_stats" in name else None


def is_fresh(name: str, schemas: Sequence[Any] | None = None) -> bool:
    """Say whether no result of an ATen function can share memory with an unwritten argument."""
    if name in tables.RESULT_IS_NO_TENSOR:
        return True
    if name in tables.ALIAS_IN_SPITE_OF_SCHEMA or not _is_public(name):
        return False
    if schemas is None:
        schemas = schemas_of(f"aten::{tables.SAME_AS.get(name, name)}")
    # Older releases take dimensions by name as well, by composed overloads that look the number
    # up and call the plain one.
    by_number = [schema for schema in schemas if "name" not in schema.overload_name.lower()]
    return bool(by_number) and all(_is_fresh_overload(name, schema) for schema in by_number)


def _is_public(name: str) -> bool:
    """Say whether a function is in public use: private ones are not held to their schemas."""
    return not name.startswith("_") or name.startswith(("__", "_foreach_"))


def _is_fresh_overload(name: str, schema: Any) -> bool:
    results = [result for result in schema.returns if is_tensor(result)]
    unmarked = [result for result in results if result.alias_info is None]
    if any(r.alias_info is not None and not r.alias_info.is_write for r in results):
        return False
    return not unmarked or name in tables.FRESH_COMPOSITES or is_composite(schema) is False
