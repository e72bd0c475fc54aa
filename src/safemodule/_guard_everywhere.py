"""The guard of every module that is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import GraphModule
from torch.jit import ScriptModule
from torch.nn import Module

from safemodule._guard_base import BaseGuard
from safemodule._guard_forward import everywhere, lock

if TYPE_CHECKING:
    from safemodule._modes import Mode

__all__ = ["GuardEverywhere"]

_stack: Final[list[GuardEverywhere]] = []
# What stood in `nn.Module.__call__`, and what was put there.
_call: Final[list[tuple[Any, Any]]] = []


class GuardEverywhere(BaseGuard):
    """Guards every module that is called, in every thread.

    A module's class is patched when the first instance is called, with those of its submodules.
    """

    def __init__(self, mode: Mode | None, mutable: tuple[str, ...]) -> None:
        super().__init__(mode, mutable)
        with lock:
            _stack.append(self)
            everywhere.guard = self
            if len(_stack) == 1:
                _patch_call()

    def __repr__(self) -> str:
        state = "" if self.active else ", removed"
        return f"<guard of every module{state}>"

    def meet(self, module: Module) -> None:
        """Guard a module that is about to be called; if its class is new, its submodules too."""
        with lock:
            if not self.active:
                return
            for part in (module,) if type(module) in self.owners else module.modules():
                # The compiler's own graphs are modules too, called by its rules.
                if not isinstance(part, (ScriptModule, GraphModule)):
                    self.meet_module(part)
            self.owners.setdefault(type(module), None)

    def leave_modules(self) -> None:
        _stack.remove(self)
        everywhere.guard = _stack[-1] if _stack else None
        if not _stack:
            _unpatch_call()


def _patch_call() -> None:
    original: Any = Module.__dict__["__call__"]
    is_compiling = torch.compiler.is_compiling

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 -- it stands for it
        if not is_compiling():  # pragma: no branch -- the other way is read by TorchDynamo, not run
            guard = everywhere.guard
            if guard is not None and (type(self) not in guard.owners or "forward" in vars(self)):
                guard.meet(self)
        return original(self, *args, **kwargs)

    _call.append((original, __call__))
    Module.__call__ = __call__  # type: ignore[method-assign]


def _unpatch_call() -> None:
    original, ours = _call.pop()
    # If somebody patched it over, ours stays below, and does nothing.
    if Module.__dict__["__call__"] is ours:
        Module.__call__ = original
