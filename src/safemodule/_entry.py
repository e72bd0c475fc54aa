"""The general way through a guarded call: containers, keywords, snapshots, tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module

from safemodule._call import Call, must_clone
from safemodule._compat import CAN_SWAP, warn_degraded
from safemodule._release import Release
from safemodule._state import Plan, handle_and_root
from safemodule._tensor import FrozenTensor

if TYPE_CHECKING:
    from collections.abc import Iterable


def enter(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Call, tuple[Any, ...], dict[str, Any]]:
    """Begin a guarded call: return it, and what stands in for the arguments."""
    if not CAN_SWAP:
        warn_degraded()
    owner = type(args[0]) if args and isinstance(args[0], Module) else None
    call = Call(plan, owner, cloning=must_clone())
    mutable = plan.mutable
    made: list[Any] = []
    names, count = plan.positional, len(plan.positional)
    for i, arg in enumerate(args):
        if i < count:
            name = names[i]
            made.append(call.pass_on(arg) if name in mutable else call.protect(arg, name))
        elif plan.variadic in mutable:
            made.append(call.pass_on(arg))
        else:
            made.append(call.protect(arg, f"{plan.variadic}[{i - count}]"))
    if kwargs:
        open_ended = plan.keywords in mutable  # `**kwargs: Mutable[...]`
        kwargs = {
            name: call.pass_on(arg)
            if name in mutable or (open_ended and name not in plan.parameters)
            else call.protect(arg, name)
            for name, arg in kwargs.items()
        }
    return call, tuple(made), kwargs


def mark_over(handles: Iterable[Any]) -> None:
    """Note that the call of some handles has ended: one that was kept comes out plain later."""
    for handle in handles:
        if type(handle) is FrozenTensor:
            handle_and_root(handle)[1].over = True


def leave(call: Call, out: Any) -> Any:
    """End a guarded call: return its result, plain."""
    call.check()
    if type(out) is not Tensor or call.clones:
        out = Release(call).value(out)
    call.stand_ins.clear()
    call.close()
    return out
