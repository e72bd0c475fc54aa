"""`SafeModule`: an `nn.Module` whose `forward` cannot write its caller's tensors."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from safemodule._decorator import check_names, guard_function
from safemodule._guarded import PLAN
from safemodule._modes import check_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from safemodule._modes import Mode
    from safemodule._state import Plan

# A class keyword that is not given: what a base class says holds. None is a mode to go back to.
_UNSAID: Any = object()


class SafeModule(torch.nn.Module):
    """A `torch.nn.Module` whose inputs have copy-on-write semantics.

    As if every input of ``forward`` had been cloned on entry, except that nothing is copied unless
    it is written. Every write is logged with argument, operator, file and line.

    Subclass it instead of ``nn.Module``, or put it in front of an existing class:
    ``class SafeResNet(SafeModule, ResNet): pass``. An inherited ``forward`` is guarded too, and so is
    one that is assigned later, to an instance, or to the class before the next instance is made.

    Class keywords:
        mode: ``"copy"``, ``"warn"``, ``"strict"`` or ``"off"`` for this class and its subclasses.
        mutable: Names of parameters of ``forward`` that may be written.
        snapshot: Copy every input on entry, so that later writes of the caller do not reach what
            ``forward`` saved for backward.

    Raises:
        TypeError: On an unknown class keyword, at class creation.
        ValueError: If ``mode`` is no mode or a name in ``mutable`` is no parameter of ``forward``.

    Example:
        >>> import torch
        >>> from safemodule import SafeModule, record
        >>> class Clamp(SafeModule):
        ...     def forward(self, boxes):
        ...         return boxes.clamp_(0, 10)
        >>> boxes = torch.tensor([-1.0, 20.0])
        >>> with record() as log:
        ...     Clamp()(boxes)
        tensor([ 0., 10.])
        >>> boxes
        tensor([-1., 20.])
        >>> log[0].op, log[0].argument
        ('clamp_', 'boxes')
    """

    def __init_subclass__(
        cls,
        *,
        mode: Mode | None = _UNSAID,
        mutable: Iterable[str] = _UNSAID,
        snapshot: bool = _UNSAID,
        **keywords: Any,
    ) -> None:
        said: dict[str, Any] = {"mode": mode, "mutable": mutable, "snapshot": snapshot}
        own = {name: value for name, value in said.items() if value is not _UNSAID}
        try:
            super().__init_subclass__(**keywords)
        except TypeError:
            if not keywords:
                raise
            unknown = ", ".join(map(repr, keywords))
            raise TypeError(
                f"class {cls.__qualname__}: unknown keyword {unknown}; SafeModule takes "
                f"{', '.join(map(repr, said))}"
            ) from None
        own = _checked(own)
        options = {**_inherited(cls), **own}
        cls._safemodule_options = options
        becomes: Any = getattr(cls, "cls_to_become", None)
        if isinstance(becomes, type) and not issubclass(becomes, SafeModule):
            # `nn.LazyLinear` becomes an `nn.Linear` at the first call, and would lose its guard.
            lazy: Any = cls  # to a type checker no attribute of every SafeModule
            lazy.cls_to_become = None
        guard_forward(cls, {**options, "own": own.get("mutable", ())}, declares=bool(own))

    # `__call__` stays nn.Module's own: tools patch that one (torch.fx), and a look at `forward` in
    # each call would cost 0.17 us. So `forward` is looked at where it can change.

    # Type checkers do not see it: in front of another class it would hide the signature of its own.
    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            guard_forward(type(self), type(self)._safemodule_options, declares=False)
            super().__init__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            value = _guarded_instance_forward(self, value)
        super().__setattr__(name, value)


SafeModule._safemodule_options = {}  # type: ignore[attr-defined]


def _checked(own: dict[str, Any]) -> dict[str, Any]:
    if own.get("mode") is not None:
        check_mode(own["mode"])
    if "mutable" in own:
        own["mutable"] = check_names(own["mutable"])
    if "snapshot" in own:
        own["snapshot"] = bool(own["snapshot"])
    return own


def _inherited(cls: type) -> dict[str, Any]:
    """Merge what the bases declare, the nearest last."""
    merged: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        merged.update(base.__dict__.get("_safemodule_options", {}))
    return merged


def guard_forward(cls: Any, options: dict[str, Any], *, declares: bool) -> None:
    """Guard the `forward` that a class has now, its own or an inherited one."""
    forward = cls.forward
    plan = getattr(forward, PLAN, None)
    if plan is not None and plan.chained and not declares and _agrees(plan, forward, options):
        return
    if forward is torch.nn.Module.forward:
        return
    original = forward.__wrapped__ if plan is not None and plan.chained else forward
    if "forward" in cls.__dict__ and isinstance(
        cls.__dict__["forward"], (staticmethod, classmethod)
    ):
        raise TypeError(f"class {cls.__qualname__}: forward must be a method")
    cls.forward = guard_function(original, chained=True, **_options(original, options))


def _agrees(plan: Plan, forward: Any, options: dict[str, Any]) -> bool:
    """Tell whether an inherited guard is what this class asks for."""
    wanted = _options(forward, options)
    return (
        plan.mode == wanted["mode"]
        and plan.snapshot == wanted["snapshot"]
        and plan.mutable.issuperset(wanted["mutable"])
    )


def _guarded_instance_forward(module: Any, forward: Any) -> Any:
    """Guard a `forward` assigned to an instance, unless it leads to a guarded one anyway."""
    seen: Any = forward
    while seen is not None:
        if getattr(seen, PLAN, None) is not None:
            return forward
        if getattr(seen, "__self__", None) is module and hasattr(seen, "__func__"):
            seen = seen.__func__
            continue
        seen = getattr(seen, "__wrapped__", None) or getattr(seen, "func", None)
    if not callable(forward):
        return forward  # nn.Module says what is wrong with it, at the call
    return guard_function(forward, **_options(forward, type(module)._safemodule_options))


def _options(forward: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a `forward` is guarded with: inherited names that it lacks do not concern it."""
    own = options.get("own", ())
    names = inspect.signature(forward).parameters
    inherited = [name for name in options.get("mutable", ()) if name in names and name not in own]
    return {
        "mode": options.get("mode"),
        "mutable": (*own, *inherited),
        "snapshot": options.get("snapshot", False),
    }
