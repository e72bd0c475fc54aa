"""The guard of one model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.jit import ScriptModule
from torch.nn.modules.module import register_module_module_registration_hook

from safemodule._guard_base import BaseGuard, alive
from safemodule._guard_forward import MARK, lock

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

    from safemodule._modes import Mode

__all__ = ["GuardModel"]


class GuardModel(BaseGuard):
    """Guards one model."""

    def __init__(
        self, mode: Mode | None, mutable: tuple[str, ...], model: Module, *, submodules: bool
    ) -> None:
        super().__init__(mode, mutable)
        self._modules: list[weakref.ref[Module]] = []
        self._name = type(model).__qualname__
        self._hook: Any = None
        try:
            with lock:
                for module in model.modules() if submodules else (model,):
                    self._mark(module)
                self._check_mutable()
        except BaseException:
            self.remove()
            raise
        if submodules:
            self._hook = _watch(weakref.ref(self))
            weakref.finalize(self, self._hook.remove).atexit = False

    def __repr__(self) -> str:
        state = "" if self.active else ", removed"
        return f"<guard of {self._name}: {sum(1 for _ in alive(self._modules))} modules{state}>"

    def _mark(self, module: Module) -> None:
        if isinstance(module, ScriptModule) or self in module.__dict__.get(MARK, ()):
            return
        self.meet_module(module)
        module.__dict__[MARK] = (*module.__dict__.get(MARK, ()), self)
        self._modules.append(weakref.ref(module))

    def _check_mutable(self) -> None:
        for name in self._mutable:
            if name not in self._known:
                raise ValueError(
                    f"mutable={name!r} is no parameter of a forward that is guarded; "
                    f"their parameters are: {', '.join(sorted(self._known - {'self'})) or 'none'}"
                )

    def added(self, parent: Module, child: Module | None) -> None:
        """Guard a submodule that is added to a guarded module, and its own."""
        if child is not None and self.active and self in parent.__dict__.get(MARK, ()):
            with lock:
                for module in child.modules():
                    self._mark(module)

    def leave_modules(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        for module in alive(self._modules):
            left = tuple(g for g in module.__dict__.get(MARK, ()) if g not in (self, None))
            if left:
                module.__dict__[MARK] = left
            else:
                module.__dict__.pop(MARK, None)


def _watch(this: weakref.ref[Any]) -> RemovableHandle:
    """Have torch tell a guard of new submodules; it does not keep the guard alive."""

    def added(parent: Module, name: str, child: Module | None) -> None:
        del name
        guard: GuardModel | None = this()
        if guard is not None:  # pragma: no branch -- another thread may drop it at this moment
            guard.added(parent, child)

    return register_module_module_registration_hook(added)
