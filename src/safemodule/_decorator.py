"""`freeze_inputs`: guard one function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import torch

from safemodule._call import Call, must_clone
from safemodule._compat import CAN_SWAP, warn_degraded
from safemodule._location import Location
from safemodule._modes import Mode, check_mode, effective
from safemodule._mutable import declared_mutable
from safemodule._release import Release
from safemodule._state import Plan

_P = ParamSpec("_P")
_R = TypeVar("_R")

_is_compiling: Any = torch.compiler.is_compiling


@overload
def freeze_inputs(func: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def freeze_inputs(
    *, mode: Mode | None = None, mutable: Iterable[str] = (), snapshot: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def freeze_inputs(
    func: Any = None,
    /,
    *,
    mode: Mode | None = None,
    mutable: Iterable[str] = (),
    snapshot: bool = False,
) -> Any:
    """Give a function's tensor arguments copy-on-write semantics.

    As if every input had been cloned on entry, except that nothing is copied unless it is written.
    Use it bare or with arguments, on a module's ``forward`` or on any function or method that
    takes tensors, also inside dicts, lists, tuples, dataclasses and types registered with PyTorch's
    pytree.

    Args:
        func: The function; given by the decorator syntax without arguments.
        mode: ``"copy"``, ``"warn"``, ``"strict"`` or ``"off"``. Default: what `set_mode` or the
            environment variable ``SAFEMODULE_MODE`` says, else ``"copy"``.
        mutable: Names of the parameters that may be written: they arrive as they are. The same is
            said by the annotation ``Mutable[...]``.
        snapshot: Copy every input on entry, so that later writes of the caller do not reach what
            the function saved for backward.

    Returns:
        The guarded function, with name, signature and documentation of the original.

    Raises:
        TypeError: If what is decorated is no function, or a generator function.
        ValueError: If ``mode`` is no mode or a name in ``mutable`` is no parameter.

    Example:
        >>> import torch
        >>> from safemodule import freeze_inputs
        >>> @freeze_inputs
        ... def step(logits, mask):
        ...     logits[mask] = -1e9
        ...     return logits.softmax(-1)
        >>> x = torch.zeros(2)
        >>> step(x, torch.tensor([True, False]))
        tensor([0., 1.])
        >>> x
        tensor([0., 0.])
    """
    if func is None:
        declared = None if mode is None else check_mode(mode)
        names = check_names(mutable)
        return functools.partial(_decorate, mode=declared, mutable=names, snapshot=bool(snapshot))
    return _decorate(func, mode=None, mutable=(), snapshot=False)


def check_names(mutable: Any) -> tuple[str, ...]:
    """Return the names in `mutable=`; a single string is a likely slip and refused."""
    if isinstance(mutable, str):
        raise TypeError(f'mutable is a sequence of names: mutable=("{mutable}",)')
    names = tuple(mutable)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"mutable holds names of parameters, not {type(name).__name__}")
    return names


def _decorate(
    func: Any, *, mode: Mode | None, mutable: tuple[str, ...], snapshot: bool
) -> Any:
    if isinstance(func, (staticmethod, classmethod)):
        inner = _decorate(func.__func__, mode=mode, mutable=mutable, snapshot=snapshot)
        return type(func)(inner)
    return guard_function(func, mode=mode, mutable=mutable, snapshot=snapshot)


def guard_function(
    func: Any,
    *,
    mode: Mode | None,
    mutable: tuple[str, ...],
    snapshot: bool,
    chained: bool = False,
) -> Any:
    """Return the guarded form of a function. `chained`: it is the forward of a `SafeModule`."""
    _check_function(func)
    plan = make_plan(func, mode=mode, mutable=mutable, snapshot=snapshot, chained=chained)
    if inspect.iscoroutinefunction(func):
        return _guard_coroutine(func, plan)

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return func(*_cloned(plan, args), **_cloned_named(plan, kwargs))
        if effective(plan.mode) == "off":
            return func(*args, **kwargs)
        if chained and args and _is_parent_forward(args[0], guarded):
            return func(*args, **kwargs)
        call, args, kwargs = enter(plan, args, kwargs)
        out = func(*args, **kwargs)
        del args, kwargs
        return leave(call, out)

    guarded.__safemodule_plan__ = plan  # type: ignore[attr-defined]
    return guarded


def _guard_coroutine(func: Any, plan: Plan) -> Any:
    @functools.wraps(func)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        if effective(plan.mode) == "off":
            return await func(*args, **kwargs)
        call, args, kwargs = enter(plan, args, kwargs)
        out = await func(*args, **kwargs)
        del args, kwargs
        return leave(call, out)

    guarded.__safemodule_plan__ = plan  # type: ignore[attr-defined]
    return guarded


def enter(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Call, tuple[Any, ...], dict[str, Any]]:
    """Begin a guarded call: return it, and what stands in for the arguments."""
    if not CAN_SWAP:
        warn_degraded()
    owner = type(args[0]) if args and isinstance(args[0], torch.nn.Module) else None
    call = Call(plan, owner, cloning=must_clone())
    mutable = plan.mutable
    made: list[Any] = []
    names, count = plan.positional, len(plan.positional)
    for i, arg in enumerate(args):
        if i < count:
            name = names[i]
            made.append(arg if name in mutable else call.protect(arg, name))
        elif plan.variadic in mutable:
            made.append(arg)
        else:
            made.append(call.protect(arg, f"{plan.variadic}[{i - count}]"))
    if kwargs:
        open_ended = plan.keywords in mutable  # `**kwargs: Mutable[...]`
        kwargs = {
            name: arg
            if name in mutable or (open_ended and name not in plan.parameters)
            else call.protect(arg, name)
            for name, arg in kwargs.items()
        }
    return call, tuple(made), kwargs


def leave(call: Call, out: Any) -> Any:
    """End a guarded call: return its result, plain."""
    if type(out) is not torch.Tensor or call.clones:
        out = Release(call).value(out)
    call.stand_ins.clear()
    call.close()
    return out


def make_plan(
    func: Any, *, mode: Mode | None, mutable: tuple[str, ...], snapshot: bool, chained: bool
) -> Plan:
    """Read a function's signature once, at decoration."""
    parameters = inspect.signature(func).parameters
    positional = tuple(
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
    variadic = [name for name, p in parameters.items() if p.kind is p.VAR_POSITIONAL]
    keywords = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    code = getattr(inspect.unwrap(func), "__code__", None)
    where = Location("<unknown>", 0, "")
    if code is not None:
        where = Location(code.co_filename, code.co_firstlineno, code.co_name)
    return Plan(
        name=f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', repr(func))}",
        positional=positional,
        parameters=frozenset(parameters),
        variadic=variadic[0] if variadic else "args",
        keywords=keywords[0] if keywords else None,
        mutable=declared_mutable(func, tuple(parameters), mutable),
        mode=mode,
        snapshot=snapshot,
        chained=chained,
        where=where,
    )


def _check_function(func: Any) -> None:
    if isinstance(func, type):
        raise TypeError(
            f"freeze_inputs decorates a function, not the class {func.__qualname__}: "
            "decorate its forward, or derive it from SafeModule"
        )
    if isinstance(func, torch.nn.Module):
        raise TypeError(
            "freeze_inputs decorates a function, not a module: use guard(module), or decorate the "
            "forward of its class"
        )
    if not callable(func):
        raise TypeError(f"freeze_inputs decorates a function, not {type(func).__name__}")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(
            f"freeze_inputs cannot guard the generator {func.__qualname__}: what it yields must be "
            "plain, while it goes on writing. Guard the functions it calls, or freeze(x) inside"
        )


# -- a parent's forward ----------------------------------------------------------------------------


def _is_parent_forward(module: Any, guarded: Any) -> bool:
    """Tell whether this is `super().forward(...)` from within the module's own guarded forward."""
    if getattr(type(module), "forward", None) is guarded:
        return False
    code = guarded.__code__  # one code object for every guarded function
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is code:
            inside = frame.f_locals.get("args")
            if inside and inside[0] is module:
                return True
        frame = frame.f_back
    return False


# -- under a compiler ------------------------------------------------------------------------------


def _cloned(plan: Plan, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        [
            arg if i < len(plan.positional) and plan.positional[i] in plan.mutable else _clone(arg)
            for i, arg in enumerate(args)
        ]
    )


def _cloned_named(plan: Plan, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: arg if name in plan.mutable else _clone(arg) for name, arg in kwargs.items()}


def _clone(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.clone()
    if type(x) is dict:
        return {key: _clone(value) for key, value in x.items()}
    if type(x) is list:
        return [_clone(value) for value in x]
    if type(x) is tuple:
        return tuple([_clone(value) for value in x])
    return x
