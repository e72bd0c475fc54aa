"""What `guard` returns, and what all guards share."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from safemodule._guard_forward import (
    InstanceForward,
    guarded,
    lock,
    owner_of,
    patch,
    plan_of,
    unpatch,
)
from safemodule._guarded import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from torch.nn import Module

    from safemodule._modes import Mode
    from safemodule._state import Plan

__all__ = ["BaseGuard", "Guard", "alive"]


class Guard(ABC):
    """What `guard` returns: protection that holds until it is removed.

    It is made by `guard`, and by nothing else. At the end of a ``with`` block it is removed.

    Attributes:
        active: Whether it is in force.

    Example:
        >>> import torch
        >>> import safemodule
        >>> protection = safemodule.guard(torch.nn.ReLU(inplace=True))
        >>> isinstance(protection, safemodule.Guard), protection.active
        (True, True)
        >>> protection.remove()
        >>> protection.active
        False
    """

    active: bool

    @abstractmethod
    def remove(self) -> None:
        """End the protection; everything is as it was before. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.remove()


class BaseGuard(Guard):
    """A guard that patches classes: what that of one model and that of every module share."""

    def __init__(self, mode: Mode | None, mutable: tuple[str, ...]) -> None:
        self.active = True
        self.calls: dict[Any, Any] = {}
        """The guarded form of each `forward`; empty after removal."""
        self._known: set[str] = set()
        """Names of parameters of all of them."""
        self._mode: Mode | None = mode
        self._mutable = mutable
        self.owners: dict[type, type | None] = {}
        """Class of a module -> the class that was patched for it."""
        self._assigned: list[weakref.ref[Module]] = []
        """The modules with a `forward` of their own."""
        # A model may be dropped without a word; what was done to the classes is undone then too.
        self._undo = weakref.finalize(self, _unpatch_all, self.owners)
        self._undo.atexit = False

    def remove(self) -> None:
        with lock:
            if self.active:
                self.active = False
                self.leave_modules()
                self.calls.clear()
                for module in alive(self._assigned):
                    _drop_assigned(self, module)
                self._undo()

    # A copy of a module is guarded by the same guard; a pickle of one holds None in its place.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()

    @abstractmethod
    def leave_modules(self) -> None:
        """Take back what was done to modules and to torch."""

    def meet_module(self, module: Module) -> None:
        """Guard calls of a module's class, and a `forward` of its own."""
        cls = type(module)
        if cls not in self.owners:
            owner = owner_of(cls)
            if owner is not None and owner not in self.owners.values():
                forward = patch(owner)
                func = forward.__wrapped__
                self.calls[func] = guarded(func, self._plan_of(func), forward)
            self.owners[cls] = owner
        forward = module.__dict__.get("forward")
        if forward is not None and not _is_compiled(module):
            self._meet_assigned(module, forward)

    def _meet_assigned(self, module: Module, forward: Any) -> None:
        if not isinstance(forward, InstanceForward):
            if not callable(forward) or hasattr(forward, PLAN):
                return
            forward = module.__dict__["forward"] = InstanceForward(forward, type(module))
        if not any(guard is self for guard, _, _ in forward.guards):
            forward.add(self, self._plan_of(forward.__wrapped__))
            self._assigned.append(weakref.ref(module))

    def _plan_of(self, func: Any) -> Plan:
        plan = plan_of(func, self._mode, self._mutable)
        self._known |= plan.parameters
        return plan


def alive(modules: Iterable[weakref.ref[Module]]) -> Iterable[Module]:
    """Yield the modules that still exist."""
    return (module for ref in modules if (module := ref()) is not None)


def _unpatch_all(owners: dict[type, type | None]) -> None:
    with lock:
        for owner in {owner for owner in owners.values() if owner is not None}:
            unpatch(owner)
        owners.clear()


def _drop_assigned(guard: BaseGuard, module: Module) -> None:
    forward = module.__dict__.get("forward")
    if isinstance(forward, InstanceForward):
        forward.drop(guard)
        if not forward.guards:
            module.__dict__["forward"] = forward.__wrapped__


def _is_compiled(module: Module) -> bool:
    """Tell whether this is what `torch.compile` returns: its forward enters the compiled code."""
    return type(module).__qualname__ == "OptimizedModule"


Guard.__module__ = "safemodule"
