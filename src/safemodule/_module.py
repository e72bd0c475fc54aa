"""`SafeModule`: an `nn.Module` whose `forward` cannot write its caller's tensors."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from safemodule._decorator import check_names, guard_function
from safemodule._modes import check_mode
from safemodule._state import Plan

_PLAN = "__safemodule_plan__"


class SafeModule(torch.nn.Module):
    """A `torch.nn.Module` whose inputs have copy-on-write semantics.

    As if every input of ``forward`` had been cloned on entry, except that nothing is copied unless
    it is written. Every write is logged with argument, operator, file and line.

    Subclass it instead of ``nn.Module``, or put it in front of an existing class:
    ``class SafeResNet(SafeModule, ResNet): pass``. An inherited ``forward`` is guarded too, and so is
    one that is assigned later.

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

    def __init_subclass__(cls, **keywords: Any) -> None:
        own: dict[str, Any] = {name: keywords.pop(name) for name in _KEYWORDS if name in keywords}
        try:
            super().__init_subclass__(**keywords)
        except TypeError:
            if not keywords:
                raise
            unknown = ", ".join(map(repr, keywords))
            raise TypeError(
                f"class {cls.__qualname__}: unknown keyword {unknown}; SafeModule takes "
                f"{', '.join(map(repr, _KEYWORDS))}"
            ) from None
        own = _checked(own)
        options = {**_inherited(cls), **own}
        cls._safemodule_options = options
        guard_forward(cls, {**options, "own": own.get("mutable", ())}, declares=bool(own))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As nn.Module does it, after a look whether `forward` was assigned since the class was
        # made: 0.06 us.
        cls = type(self)
        if cls.forward is not cls._safemodule_forward:
            guard_forward(cls, cls._safemodule_options, declares=False)
        if "forward" in self.__dict__:
            _guard_instance(self)
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)


_KEYWORDS = ("mode", "mutable", "snapshot")
SafeModule._safemodule_options = {}  # type: ignore[attr-defined]
SafeModule._safemodule_forward = SafeModule.forward  # type: ignore[attr-defined]


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
    plan = getattr(forward, _PLAN, None)
    if plan is not None and plan.chained and not declares and _agrees(plan, forward, options):
        cls._safemodule_forward = forward
        return
    if getattr(forward, "__name__", "") == "_forward_unimplemented":
        cls._safemodule_forward = forward
        return
    original = forward.__wrapped__ if plan is not None and plan.chained else forward
    if "forward" in cls.__dict__ and isinstance(cls.__dict__["forward"], (staticmethod, classmethod)):
        raise TypeError(f"class {cls.__qualname__}: forward must be a method")
    cls.forward = guard_function(original, chained=True, **_options(original, options))
    cls._safemodule_forward = cls.forward


def _agrees(plan: Plan, forward: Any, options: dict[str, Any]) -> bool:
    """Tell whether an inherited guard is what this class asks for."""
    wanted = _options(forward, options)
    return (
        plan.mode == wanted["mode"]
        and plan.snapshot == wanted["snapshot"]
        and plan.mutable.issuperset(wanted["mutable"])
    )


def _guard_instance(module: Any) -> None:
    """Guard a `forward` assigned to the instance, unless it leads to a guarded one anyway."""
    forward = module.__dict__["forward"]
    seen: Any = forward
    while seen is not None:
        if getattr(seen, _PLAN, None) is not None:
            return
        if getattr(seen, "__self__", None) is module and hasattr(seen, "__func__"):
            seen = seen.__func__
            continue
        seen = getattr(seen, "__wrapped__", None) or getattr(seen, "func", None)
    options = type(module)._safemodule_options
    module.__dict__["forward"] = guard_function(forward, **_options(forward, options))


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
