"""The handle inside a compiled region.

The compiler turns writes into new values by itself, but not the order of reading and writing: a
value that autograd saves and a later line writes is refused, or, by some operators, silently
differentiated at the wrong place. So here each *read* of an input takes a clone of it, and writes go
to the one tensor that all views share. The compiler drops the clones that nobody needs, which
is nearly all: the code that it generates is the code of the module without the library.

Everything here is traced by TorchDynamo: no closures, no strings taken apart, and what must be
worked out for real stands in functions marked constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from safemodule import _writes_pick as pick
from safemodule._compile_compat import (
    HigherOrderOperator,
    constant_in_trace,
    interception_off,
    kept_inside,
)
from safemodule._writes import Kind, effect_of

# What an operation does, as a constant of the trace.
_READ, _VIEW, _FIRST, _OUT, _OTHER, _ITSELF, _AS_IS = range(7)


class CompiledHandle(Tensor):
    """A private copy of an input while TorchDynamo traces.

    It exists in traces only: what leaves the compiled code, also at a graph break, is plain. So after
    a break, a value that is read and then written is refused by autograd as after a manual clone.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        with interception_off():
            code = _code_of(func)
            if code == _READ:
                return func(*_cloned(args), **_cloned_named(named))
            if code == _VIEW or (code == _OUT and "out" not in named):
                return _view(func, args, named)
            if code == _FIRST and len(args) > 0 and not _saves_result(func):
                _write_first(func, args[0], _cloned(args[1:]), _cloned_named(named))
                return args[0]
            if code == _ITSELF:
                func(*args, **named)
                return args[0]
            if code == _AS_IS:
                return func(*args, **named)
            return _write(func, args, named)


def _routed(name: str) -> Any:
    """Return a method that leads where torch leads for methods written in C++."""
    method = getattr(Tensor, name)

    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return CompiledHandle.__torch_function__(method, (), (self, *args), kwargs)

    return routed


# TorchDynamo asks a subclass for methods of torch that are written in Python as for attributes,
# and stops there. (torch/_dynamo/variables/torch_function.py: `var_getattr`)
for _name in ("norm", "split", "unflatten", "unique", "unique_consecutive", "stft", "istft", "lu"):
    setattr(CompiledHandle, _name, _routed(_name))


@constant_in_trace
def _code_of(func: Any) -> int:
    effect = effect_of(func)
    if effect.kind is Kind.WRITE:
        if effect.written is pick.out:
            return _OUT
        return _FIRST if effect.written is pick.first else _OTHER
    if effect.kind is Kind.READ:
        # The outputs of a higher-order operator are never its inputs.
        alias = effect.may_alias and not isinstance(func, HigherOrderOperator)
        return _VIEW if alias else _READ
    if effect.kind is Kind.METADATA or effect.name in ("requires_grad_", "detach_"):
        return _ITSELF
    return _AS_IS


@constant_in_trace
def _saves_result(func: Any) -> bool:
    return effect_of(func).saves_result


@constant_in_trace
def _may_alias(func: Any) -> bool:
    return effect_of(func).may_alias


@constant_in_trace
def _is_python(func: Any) -> bool:
    return hasattr(func, "__code__")


def _view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation that writes nothing; if results may be views, they are handles too."""
    if not _may_alias(func):  # autograd may save the clones, nobody writes them
        return func(*_cloned(args), **_cloned_named(kwargs))
    if _is_python(func):  # functions of torch that ask for subclasses again do not find them
        args, kwargs = _aliased(args), {key: _aliased(arg) for key, arg in kwargs.items()}
    return _handles(func(*args, **kwargs))


_copy = Tensor.copy_


def _write_first(func: Any, target: Tensor, rest: Any, kwargs: dict[str, Any]) -> None:
    """Run an operation that writes its first argument; the variable stays a handle.

    After a write with a tensor among the other arguments, TorchDynamo derives what it knows of the
    written variable from a value that is plain. That variable would be no handle any more, and could
    not be returned: it is of a class without a name in the generated code. An alias may become so.
    (torch/_dynamo/variables/tensor.py: `_sync_if_inplace_mutation`)
    """
    others: list[Tensor] = []
    _flatten(rest, others)
    _flatten(list(kwargs.values()), others)
    func(target if len(others) == 0 else _alias(target), *rest, **kwargs)


def _write(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation that writes some of its arguments, or none, as the flags among them say."""
    shape = (_outline(args), _outline(list(kwargs.values())), tuple(kwargs))
    which = _written(func, *shape)
    if len(which) == 0:
        return _view(func, args, kwargs)
    everything: list[Tensor] = []
    _flatten(args, everything)
    _flatten(list(kwargs.values()), everything)
    targets = [everything[i] for i in which]
    # What the operation saves of its result must not be written later: it gets a tensor to spoil.
    apart = _saves_result(func)
    stand_ins = [target.clone() if apart else _alias(target) for target in targets]
    args = _replaced(args, targets, stand_ins)
    kwargs = {key: _replaced(arg, targets, stand_ins) for key, arg in kwargs.items()}
    out = func(*args, **kwargs)
    if apart:
        for target, stand_in in zip(targets, stand_ins, strict=True):
            _write_first(_copy, target, (stand_in,), {})
    for target, stand_in in zip(targets, stand_ins, strict=True):
        if out is stand_in:
            return target
    return out


@constant_in_trace
def _written(func: Any, args: Any, values: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return which tensors, counted from the left, a call with arguments of this outline writes."""
    found: list[Tensor] = []
    positional = _build(args, found)
    named = dict(zip(names, _build(values, found), strict=True))
    writer = effect_of(func).written
    targets = [] if writer is None else writer(tuple(positional), named)
    return tuple(i for i, t in enumerate(found) if any(t is target for target in targets))


def _build(outline: Any, found: list[Tensor]) -> Any:
    if not isinstance(outline, tuple):
        return outline
    kind, *inside = outline
    if kind == "tensor":
        dtype = torch.float32 if inside[1] else torch.int64
        found.append(torch.empty((1,) * inside[0], dtype=dtype, device="meta"))
        return found[-1]
    return [_build(item, found) for item in inside]


def _outline(arg: Any) -> Any:
    """Describe an argument by constants: of a tensor what a writer may ask for."""
    if isinstance(arg, Tensor):
        return ("tensor", arg.dim(), arg.is_floating_point())
    if type(arg) is list or type(arg) is tuple:
        return ("list", *[_outline(item) for item in arg])
    if arg is None or type(arg) is bool or type(arg) is float or type(arg) is str:
        return arg
    return 1


def _flatten(arg: Any, into: list[Tensor]) -> None:
    if isinstance(arg, Tensor):
        into.append(arg)
    elif type(arg) is list or type(arg) is tuple:
        for item in arg:
            _flatten(item, into)


# -- arguments and results: tensors, and lists and tuples of them ----------------------------------


def _cloned(arg: Any) -> Any:
    if isinstance(arg, CompiledHandle):
        return arg.clone()
    if type(arg) is list:
        return [_cloned(item) for item in arg]
    if type(arg) is tuple:
        return tuple([_cloned(item) for item in arg])
    return arg


def _cloned_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: _cloned(arg) for key, arg in kwargs.items()}


def _alias(tensor: Tensor) -> Tensor:
    return tensor.view_as(tensor)


def _aliased(arg: Any) -> Any:
    if isinstance(arg, CompiledHandle):
        return _alias(arg)
    if type(arg) is list:
        return [_aliased(item) for item in arg]
    if type(arg) is tuple:
        return tuple([_aliased(item) for item in arg])
    return arg


def _replaced(arg: Any, targets: list[Tensor], stand_ins: list[Tensor]) -> Any:
    """Put the stand-ins where the targets were, and clones where other handles were."""
    if isinstance(arg, Tensor):
        for target, stand_in in zip(targets, stand_ins, strict=True):
            if arg is target:
                return stand_in
        return _cloned(arg)
    if type(arg) is list:
        return [_replaced(item, targets, stand_ins) for item in arg]
    if type(arg) is tuple:
        return tuple([_replaced(item, targets, stand_ins) for item in arg])
    return arg


def _handles(out: Any) -> Any:
    if isinstance(out, Tensor):
        return out.as_subclass(CompiledHandle)
    if type(out) is list:
        return [_handles(item) for item in out]
    if type(out) is tuple:
        return tuple([_handles(item) for item in out])
    return out


@constant_in_trace
def handles_work() -> bool:
    """Tell whether this torch can trace handles."""
    return kept_inside(CompiledHandle)


def plain(handle: Tensor) -> Tensor:
    """Return a handle as an ordinary tensor."""
    with interception_off():
        return _alias(handle)
