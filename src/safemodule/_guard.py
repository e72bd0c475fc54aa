"""`guard()`: protect a model that somebody else wrote."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import GraphModule
from torch.jit import ScriptModule
from torch.nn import Module
from torch.nn.modules.module import register_module_module_registration_hook

from safemodule._decorator import check_names
from safemodule._guard_forward import (
    MARK,
    InstanceForward,
    everywhere,
    guarded,
    lock,
    owner_of,
    patch,
    plan_of,
    unpatch,
)
from safemodule._guarded import PLAN
from safemodule._modes import check_mode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from torch.utils.hooks import RemovableHandle

    from safemodule._modes import Mode
    from safemodule._state import Plan

__all__ = ["Guard", "guard"]


def guard(
    model: Module | None = None,
    *,
    mode: Mode | None = None,
    mutable: Iterable[str] = (),
    submodules: bool = True,
) -> Guard:
    """Protect the inputs of a model that somebody else wrote.

    Every call of ``forward``, also a direct one, gets copy-on-write inputs, as a `SafeModule` does.
    It holds from now on, until `Guard.remove` or the end of the ``with`` block. Classes, types,
    parameters and ``state_dict`` stay as they are. A module that is safe already (`SafeModule`,
    `freeze_inputs`) keeps what it declares, and a scripted one is left alone.

    A copy of a guarded model (`copy.deepcopy`, a replica of ``DataParallel``) is guarded too, until
    the guard is removed. One that was pickled and loaded is plain. Submodules that are added later
    as attributes, or by a method such as ``append``, are guarded. A ``forward`` assigned to an instance
    later, or a bound one kept from before, is not.

    Args:
        model: The model. Default: every module that is called, in every thread, also one that is
            made later, but for graphs of `torch.fx`; for this use a ``with`` block.
        mode: ``"copy"``, ``"warn"``, ``"strict"`` or ``"off"``. Default: what `set_mode` or the
            environment variable ``SAFEMODULE_MODE`` says, else ``"copy"``.
        mutable: Names of parameters that may be written, wherever a guarded ``forward`` has them.
        submodules: Guard every submodule too, not only the model itself.

    Returns:
        The guard, a context manager.

    Raises:
        TypeError: If ``model`` is no module, or a scripted one.
        ValueError: If ``mode`` is no mode, or if no guarded ``forward`` has a parameter that
            ``mutable`` names.

    Example:
        >>> import torch
        >>> from safemodule import guard, record
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> relu, x = model[1], torch.tensor([-1.0, 1.0])
        >>> with guard(model), record() as log:
        ...     relu(x)
        tensor([0., 1.])
        >>> x
        tensor([-1.,  1.])
        >>> print(log[0].module, log[0].argument)
        torch.nn.modules.activation.ReLU input
    """
    declared = None if mode is None else check_mode(mode)
    names = check_names(mutable)
    if model is None:
        return _GuardEverywhere(declared, names)
    if isinstance(model, ScriptModule):
        raise TypeError("guard() takes a module that runs in Python, and this one is scripted")
    if not isinstance(model, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"guard() takes a module, not {type(model).__name__}")
    return _GuardModel(declared, names, model, submodules=submodules)


class Guard:
    """What `guard` returns: protection that is in force until it is removed.

    Attributes:
        active: Whether it is in force.
    """

    def __init__(self, mode: Mode | None, mutable: tuple[str, ...]) -> None:
        self.active: bool = True
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
        """End the protection; everything is as it was before. A second call does nothing."""
        with lock:
            if self.active:
                self.active = False
                self._leave()
                self.calls.clear()
                for module in _alive(self._assigned):
                    _drop_assigned(self, module)
                self._undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.remove()

    # A copy of a module is guarded by the same guard; a pickle of one holds None in its place.

    def __deepcopy__(self, memo: dict[int, Any]) -> Guard:
        return self

    def __copy__(self) -> Guard:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()

    def _leave(self) -> None:
        raise NotImplementedError

    def _meet(self, module: Module) -> None:
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


class _GuardModel(Guard):
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
        return f"<guard of {self._name}: {sum(1 for _ in _alive(self._modules))} modules{state}>"

    def _mark(self, module: Module) -> None:
        if isinstance(module, ScriptModule) or self in module.__dict__.get(MARK, ()):
            return
        self._meet(module)
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

    def _leave(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        for module in _alive(self._modules):
            left = tuple(other for other in module.__dict__.get(MARK, ()) if other is not self)
            if left:
                module.__dict__[MARK] = left
            else:
                module.__dict__.pop(MARK, None)


def _watch(this: weakref.ref[Any]) -> RemovableHandle:
    """Have torch tell a guard of new submodules; it does not keep the guard alive."""

    def added(parent: Module, name: str, child: Module | None) -> None:
        del name
        guard: _GuardModel | None = this()
        if guard is not None:
            guard.added(parent, child)

    return register_module_module_registration_hook(added)


# -- every module ------------------------------------------------------------------------------------

_stack: Final[list[_GuardEverywhere]] = []
# What stood in `nn.Module.__call__`, and what was put there.
_call: Final[list[tuple[Any, Any]]] = []


class _GuardEverywhere(Guard):
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
        """Guard a module that is about to be called, and its submodules."""
        with lock:
            if self.active:
                for part in module.modules():
                    # The compiler's own graphs are modules too, called by its rules.
                    if not isinstance(part, (ScriptModule, GraphModule)):
                        self._meet(part)
                self.owners.setdefault(type(module), None)

    def _leave(self) -> None:
        _stack.remove(self)
        everywhere.guard = _stack[-1] if _stack else None
        if not _stack:
            _unpatch_call()


def _patch_call() -> None:
    original: Any = Module.__dict__["__call__"]
    is_compiling = torch.compiler.is_compiling

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 -- it stands for it
        if not is_compiling():
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


# -- helpers -----------------------------------------------------------------------------------------


def _alive(modules: Iterable[weakref.ref[Module]]) -> Iterable[Module]:
    return (module for ref in modules if (module := ref()) is not None)


def _unpatch_all(owners: dict[type, type | None]) -> None:
    with lock:
        for owner in {owner for owner in owners.values() if owner is not None}:
            unpatch(owner)
        owners.clear()


def _drop_assigned(guard: Guard, module: Module) -> None:
    forward = module.__dict__.get("forward")
    if isinstance(forward, InstanceForward):
        forward.drop(guard)
        if not forward.guards:
            module.__dict__["forward"] = forward.__wrapped__


def _is_compiled(module: Module) -> bool:
    """Tell whether this is what `torch.compile` returns: its forward enters the compiled code."""
    return type(module).__qualname__ == "OptimizedModule"


guard.__module__ = "safemodule"
