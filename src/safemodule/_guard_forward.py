"""The guarded form of a `forward` that somebody else wrote, and where it is put.

It replaces `forward` in the class that defines it, for as long as a guard is about, and acts on
the instances that carry a mark. So `type(module)` stays what it is, copies and replicas of a module
call their own `forward`, and so do modules that call each other's `forward` directly.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from torch.nn import Module

from safemodule import _guarded
from safemodule._decorator import make_plan
from safemodule._guarded import PLAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from safemodule._modes import Mode
    from safemodule._state import Plan

__all__ = [
    "MARK",
    "InstanceForward",
    "everywhere",
    "guarded",
    "lock",
    "owner_of",
    "patch",
    "plan_of",
    "unpatch",
]

# Where a module carries its guards, in its `__dict__`: a tuple, the latest last; None stands for one
# that was lost in a pickle. TorchScript leaves attributes alone that begin with two underscores.
MARK: Final = "__safemodule_guards__"


class Everywhere:
    """The guard of every module, if there is one."""

    __slots__ = ("guard",)

    def __init__(self) -> None:
        self.guard: Any = None


everywhere: Final = Everywhere()


def _bind(
    func: Any, key: str, everywhere: Everywhere, other_call: Callable[[Any, Any], Any]
) -> Any:
    # All that it uses is in its closure: see `names_of`.
    def forward(*args: Any, **kwargs: Any) -> Any:
        guards = args[0].__dict__.get(key)
        guard = (guards[-1] if guards else None) or everywhere.guard
        if guard is None:
            return func(*args, **kwargs)
        return (guard.calls.get(func) or other_call(guards, func))(*args, **kwargs)

    return forward


def _other_call(guards: Any, func: Any) -> Any:
    """Return the call for a guard further out, where the nearest was removed (a copied module)."""
    for guard in (everywhere.guard, *(guards or ()))[::-1]:
        if guard is not None and func in guard.calls:
            return guard.calls[func]
    return func


def _dispatching(func: Any) -> Any:
    """Return a `forward` that calls the guarded form of `func` where a guard wants it."""
    made = _bind(func, MARK, everywhere, _other_call)
    names = _guarded.names_of(func, made)
    return functools.update_wrapper(
        # A code object of its own, as in `_guarded.guard`: TorchDynamo keeps code by it.
        FunctionType(made.__code__.replace(), names, made.__name__, None, made.__closure__),
        func,
    )


def guarded(func: Any, plan: Plan, stand_in: Any = None) -> Any:
    """Return the guarded form of a function, called by what stands in for it in its class."""
    if inspect.iscoroutinefunction(func):
        return _guarded.guard_coroutine(func, plan)
    return _guarded.guard(func, plan, stand_in)


# -- in a class --------------------------------------------------------------------------------------

lock: Final = threading.RLock()
# How many guards want a class patched, and what stood there before.
_patched: Final[dict[type, tuple[int, Any, Any]]] = {}


def owner_of(cls: type) -> type | None:
    """Return the class in which a module's `forward` is to be guarded; None where it is not.

    It is not where it is guarded already (a `SafeModule`), missing, or a generator.
    """
    owner = next((base for base in cls.__mro__ if "forward" in base.__dict__), None)
    if owner is None or owner is Module:
        return None
    forward = owner.__dict__["forward"]
    if hasattr(forward, PLAN) or inspect.isgeneratorfunction(forward):
        return None
    if forward is Module.forward:  # taken from nn.Module by hand
        return None
    return owner


def _as_function(descriptor: Any) -> Any:
    """Return a method that does what a static method, or another descriptor, does."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        bind = getattr(type(descriptor), "__get__", None)
        bound = descriptor if bind is None else bind(descriptor, self, type(self))
        return bound(*args, **kwargs)

    return forward


def patch(owner: Any) -> Any:
    """Put the guarded form into a class, and return it; its `__wrapped__` is what it guards."""
    with lock:
        count, before, ours = _patched.get(owner, (0, None, None))
        forward = owner.__dict__["forward"]
        if forward is not ours:  # the first time, or somebody assigned another
            func = forward if isinstance(forward, FunctionType) else _as_function(forward)
            before, ours = forward, _dispatching(func)
            owner.forward = ours
        _patched[owner] = (count + 1, before, ours)
    return ours


def unpatch(owner: Any) -> None:
    """Undo one `patch`; the last one puts back what stood there before."""
    with lock:
        count, before, ours = _patched[owner]
        if count > 1:
            _patched[owner] = (count - 1, before, ours)
            return
        del _patched[owner]
        if owner.__dict__.get("forward") is ours:
            owner.forward = before


def plan_of(func: Any, mode: Mode | None, mutable: tuple[str, ...]) -> Plan:
    """Return the plan of a `forward`: it takes the names in `mutable` that it knows."""
    plan = make_plan(func, mode=mode, mutable=(), snapshot=False, chained=True)
    known = mutable if plan.keywords else [name for name in mutable if name in plan.parameters]
    return replace(plan, mutable=plan.mutable.union(known)) if known else plan


# -- in an instance ----------------------------------------------------------------------------------


class InstanceForward:
    """The guarded form of a `forward` that was assigned to a module rather than to its class.

    Args:
        func: What was assigned.
        cls: The module's class.
    """

    def __init__(self, func: Any, cls: type) -> None:
        self.__wrapped__ = func
        self.name = f"{cls.__module__}.{cls.__qualname__}"
        self.guards: tuple[tuple[Any, Plan, Any], ...] = ()
        """Each guard, the latest last, with what it says and the guarded form."""

    def add(self, guard: Any, plan: Plan) -> None:
        """Take on a guard."""
        # It is called without the module.
        plan = replace(plan, name=self.name, chained=False)
        self.guards = (*self.guards, (guard, plan, guarded(self.__wrapped__, plan)))

    def drop(self, guard: Any) -> None:
        """Forget a guard."""
        self.guards = tuple(entry for entry in self.guards if entry[0] is not guard)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for guard, _, call in self.guards[::-1]:
            if guard.active:
                return call(*args, **kwargs)
        return self.__wrapped__(*args, **kwargs)

    # A copy calls the copied function; a pickle holds the function alone.

    def __deepcopy__(self, memo: dict[int, Any]) -> InstanceForward:
        made = object.__new__(InstanceForward)
        made.__dict__.update(self.__dict__)
        func = made.__wrapped__ = copy.deepcopy(self.__wrapped__, memo)
        made.guards = tuple((guard, plan, guarded(func, plan)) for guard, plan, _ in self.guards)
        return made

    def __copy__(self) -> InstanceForward:
        made = object.__new__(InstanceForward)
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        return copy.copy, (self.__wrapped__,)
