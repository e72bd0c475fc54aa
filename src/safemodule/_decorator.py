"""`freeze_inputs`: guard one function."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import torch

from safemodule._guarded import guard, guard_coroutine
from safemodule._location import Location
from safemodule._modes import Mode, check_mode
from safemodule._mutable import declared_mutable
from safemodule._state import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_P = ParamSpec("_P")
_R = TypeVar("_R")


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


def _decorate(func: Any, *, mode: Mode | None, mutable: tuple[str, ...], snapshot: bool) -> Any:
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
    return guard_coroutine(func, plan) if inspect.iscoroutinefunction(func) else guard(func, plan)


def make_plan(
    func: Any, *, mode: Mode | None, mutable: tuple[str, ...], snapshot: bool, chained: bool
) -> Plan:
    """Read a function's signature once, at decoration."""
    parameters = _parameters(func)
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


def _parameters(func: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(func).parameters
    except ValueError:  # written in C, and does not say what it takes

        def anything(*args: Any, **kwargs: Any) -> None: ...

        return inspect.signature(anything).parameters


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
