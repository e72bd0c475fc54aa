"""Forward hooks of a `SafeModule`: what they write of the inputs goes to copies as well.

A hook that is registered on a module is part of its call. As if the inputs had been cloned on entry,
what a pre-hook writes in place is what `forward` gets, and the caller's tensors stay as they were.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from safemodule._compile import compiled_call
from safemodule._guarded import PLAN, general
from safemodule._modes import effective

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


def guarded_hook(kind: type[Hook], hook: Any, *, with_kwargs: bool) -> Any:
    """Return what is registered in place of a hook.

    Objects of classes of their own stay as they are, since their owners look for them
    (`torch.nn.utils.remove_weight_norm`), and so do PyTorch's own functions.
    """
    func = hook
    while isinstance(func, functools.partial):
        func = func.func
    torchs = (getattr(func, "__module__", None) or "").partition(".")[0] == "torch"
    return hook if torchs or not isinstance(hook, _FUNCTIONS) else kind(hook, with_kwargs)


class Hook:
    """A registered hook; called as PyTorch calls it."""

    def __init__(self, hook: Any, with_kwargs: bool) -> None:
        self.hook = hook
        self.with_kwargs = with_kwargs

    def __repr__(self) -> str:
        return repr(self.hook)

    def __call__(self, module: Any, args: tuple[Any, ...], *rest: Any) -> Any:
        plan = getattr(module.forward, PLAN, None)
        traced = torch.compiler.is_dynamo_compiling()
        if plan is None or (not traced and effective(plan.mode) == "off"):
            return self.hook(module, args, *rest)
        kwargs: dict[str, Any] = rest[0] if self.with_kwargs else {}
        skip = 1 if plan.chained else 0  # a forward assigned to an instance is given no module

        def body(*made: Any, **named: Any) -> Any:
            return self.run(module, args, made[skip:], kwargs, named, *rest[self.with_kwargs :])

        given = (module, *args) if plan.chained else args
        if traced:
            return compiled_call(body, plan, given, kwargs)
        return general(body, plan, [False], given, kwargs)

    def run(self, module: Any, args: Any, made: Any, kwargs: Any, named: Any, *result: Any) -> Any:
        """Call the hook with what stands in for the arguments."""
        raise NotImplementedError


class PreHook(Hook):
    """A hook called before `forward`, with its arguments; what it writes is what `forward` gets."""

    def run(self, module: Any, args: Any, made: Any, kwargs: Any, named: Any, *result: Any) -> Any:
        """Call the hook with what stands in for the arguments."""
        del args, kwargs, result
        if self.with_kwargs:
            out = self.hook(module, made, named)
            return (made, named) if out is None else out
        out = self.hook(module, made)
        return made if out is None else out


class PostHook(Hook):
    """A hook called after `forward`, with arguments and result.

    The result is the module's own to write, unless it is an input.
    """

    def run(self, module: Any, args: Any, made: Any, kwargs: Any, named: Any, *result: Any) -> Any:
        """Call the hook with what stands in for the arguments."""
        (value,) = result
        known = [*zip(args, made, strict=True), *((kwargs[name], named[name]) for name in kwargs)]
        for original, handle in known:
            if value is original:
                value = handle
        given = (made, named, value) if self.with_kwargs else (made, value)
        out = self.hook(module, *given)
        return value if out is None else out
