"""Pick from the arguments of one call those that the call writes.

Each function here makes, or is, a *writer*: it takes ``(args, kwargs)`` and returns the tensors that
this very call would write. Arguments are compared by identity only; where a size must be known, it
is read with interception off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch

from safemodule._writes_compat import interception_off

Written = Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Any]]


class Gate(NamedTuple):
    """A flag among the arguments that decides whether anything is written."""

    name: str
    position: int | None
    default: Any

    @classmethod
    def always(cls) -> Gate:
        """Return the gate that is open whatever the arguments are."""
        return cls("", None, default=True)

    def is_open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Look at the flag: is it true, or, if the default is None, is it given at all?"""
        value = argument(args, kwargs, self.position, self.name, self.default)
        return value is not None if self.default is None else bool(value)


class Target(NamedTuple):
    """An argument that is written: by name, by position unless keyword-only, perhaps gated."""

    name: str
    position: int | None
    gate: Gate | None = None


def argument(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    position: int | None,
    name: str,
    default: Any = None,
) -> Any:
    """Return one argument, given by position or by name."""
    if position is not None and position < len(args):
        return args[position]
    return kwargs.get(name, default)


def collect(value: Any, found: dict[int, Any]) -> None:
    """Add the tensors in ``value``, one or nested lists of them, to ``found``, each by its id."""
    if isinstance(value, torch.Tensor):
        found.setdefault(id(value), value)
    elif isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            collect(item, found)


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the tensors in ``value``, one or nested lists of them, each once."""
    if isinstance(value, torch.Tensor):
        return (value,)
    found: dict[int, Any] = {}
    collect(value, found)
    return list(found.values())


def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """Write the first argument: every in-place method, hence as short as can be."""
    return (args[0],) if args else _first_keyword(kwargs)


def _first_keyword(kwargs: dict[str, Any]) -> Sequence[Any]:
    for name in ("self", "input", "tensor"):
        if name in kwargs:
            return (kwargs[name],)
    return ()


def first_list(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """Write every tensor of the first argument."""
    return tensors_in(args[0] if args else next(iter(kwargs.values()), None))


def everything(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """Name all tensor arguments."""
    return tensors_in([args, list(kwargs.values())])


def out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:  # noqa: ARG001
    """Write ``out=``, a tensor or several: most builtin functions, hence short."""
    return tensors_in(kwargs["out"]) if "out" in kwargs else ()


def picked(targets: Sequence[Target]) -> Written:
    """Write the arguments of these names and positions whose gates are open."""
    common = targets[0].gate if len({target.gate for target in targets}) == 1 else None
    if common is not None:  # one question for all, of a norm in evaluation
        return _gated(picked([target._replace(gate=None) for target in targets]), common)
    if len(targets) == 1 and targets[0].gate is None:
        name, position, _ = targets[0]
        return lambda args, kwargs: tensors_in(argument(args, kwargs, position, name))

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        found: dict[int, Any] = {}
        for name, position, gate in targets:
            if gate is None or gate.is_open(args, kwargs):
                collect(argument(args, kwargs, position, name), found)
        return list(found.values())

    return written


def _gated(writer: Written, gate: Gate) -> Written:
    is_open = gate.is_open
    return lambda args, kwargs: writer(args, kwargs) if is_open(args, kwargs) else ()


def union(*writers: Written) -> Written:
    """Write what any of them writes."""
    return lambda args, kwargs: tensors_in([list(writer(args, kwargs)) for writer in writers])


def in_place_flag(parameters: Sequence[str]) -> Written:
    """Write the first parameter if ``inplace``: asked of every activation, hence short."""
    target = parameters[0]
    position = parameters.index("inplace")

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        if not (args[position] if len(args) > position else kwargs.get("inplace")):
            return ()
        return (args[0],) if args else (kwargs[target],)

    return written


def dropout_flag(parameters: Sequence[str], unbatched: int | None) -> Written:
    """Write the first parameter if ``inplace`` and something is dropped.

    An input without a batch dimension, of ``unbatched`` dimensions, is unsqueezed and squeezed in
    place in any case, which moves its version counter.
    """
    at = {parameter: index for index, parameter in enumerate(parameters)}
    in_place = in_place_flag(parameters)
    training = Gate("training", at.get("training"), default=True)
    p = Gate("p", at.get("p"), default=0.5)

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        found = in_place(args, kwargs)
        if not found or (training.is_open(args, kwargs) and p.is_open(args, kwargs)):
            return found
        with interception_off():
            return found if found[0].dim() == unbatched else ()

    return written


def dropout_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """torch.dropout_(input, p, train) and its kin, which write only if they drop something."""
    drops = argument(args, kwargs, 1, "p", 0.5) != 0 and argument(args, kwargs, 2, "train", True)
    return first(args, kwargs) if drops else ()


def module_load(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """``x.module_load(other, assign=False)`` copies into x."""
    return () if argument(args, kwargs, 2, "assign", default=False) else first(args, kwargs)


def resize_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """``x.resize_(*sizes)`` to the sizes that x has writes nothing, and moves no version."""
    sizes: Any = args[1:] or (kwargs.get("size"),)
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    return _unless_equal_sizes(args, kwargs, tuple(sizes))


def resize_as_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """``x.resize_as_(template)``, as `resize_`."""
    template = argument(args, kwargs, 1, "the_template")
    if not isinstance(template, torch.Tensor):
        return first(args, kwargs)
    with interception_off():
        sizes = tuple(template.shape)
    return _unless_equal_sizes(args, kwargs, sizes)


def _unless_equal_sizes(
    args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[Any, ...]
) -> Sequence[Any]:
    target = first(args, kwargs)
    if kwargs.get("memory_format") is not None:
        return target
    with interception_off():
        return () if all(tuple(tensor.shape) == sizes for tensor in target) else target


def embedding(parameters: Sequence[str]) -> Written:
    """``F.embedding`` and ``F.embedding_bag``: with ``max_norm`` rows of the weight are scaled."""
    at = {parameter: index for index, parameter in enumerate(parameters)}
    gate = Gate("max_norm", at["max_norm"], default=None)

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        if not gate.is_open(args, kwargs):
            return ()
        weight = argument(args, kwargs, at["weight"], "weight")
        indices = argument(args, kwargs, at["input"], "input")
        # embedding_bag still takes (weight, input), with a warning.
        if isinstance(weight, torch.Tensor) and isinstance(indices, torch.Tensor):
            with interception_off():
                if indices.is_floating_point() and not weight.is_floating_point():
                    return (indices,)
        return (weight,)

    return written


class _Overload(NamedTuple):
    names: tuple[str, ...]
    known: frozenset[str]
    positional: int
    required: tuple[int, ...]
    targets: list[Target]

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether these arguments fit by number and by name."""
        count = len(args)
        return (
            count <= self.positional
            and self.known.issuperset(kwargs)
            and all(i < count or self.names[i] in kwargs for i in self.required)
        )


def by_overload(schemas: Sequence[Any], targets_of: Callable[[Any], list[Target]]) -> Written:
    """Write what those overloads write that can take the arguments of the call."""
    overloads = [
        _Overload(
            tuple(a.name for a in schema.arguments),
            frozenset(a.name for a in schema.arguments),
            sum(not a.kwarg_only for a in schema.arguments),
            tuple(i for i, a in enumerate(schema.arguments) if not a.has_default_value()),
            targets_of(schema),
        )
        for schema in schemas
    ]
    if all(overload.targets == overloads[0].targets for overload in overloads):
        return picked(overloads[0].targets)
    targets = [target for overload in overloads for target in overload.targets]
    # Most functions write by overloads with out= alone.
    keywords = frozenset(target.name for target in targets)
    only_keywords = all(target.position is None for target in targets)

    def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        if only_keywords and keywords.isdisjoint(kwargs):
            return ()
        found: dict[int, Any] = {}
        for overload in overloads:
            if overload.takes(args, kwargs):
                for name, position, gate in overload.targets:
                    if gate is None or gate.is_open(args, kwargs):
                        collect(argument(args, kwargs, position, name), found)
        return list(found.values())

    return written
