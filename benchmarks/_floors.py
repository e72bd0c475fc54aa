"""The cheapest code that could keep the promises: what nothing of this kind can go below.

Each floor does a part of what it must, and nothing else. No records, no redirects, no views, no
containers: what is measured above a floor is the price of these, and what is below a floor is lost
to Python and PyTorch. They are measured in the same turns as what they are floors of.
"""

from __future__ import annotations

import functools
import sys
import types
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_run_plain: Any = torch._C._disabled_torch_function_impl
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
MODE = ["copy"]
_BLOCKS: ContextVar[tuple[str, ...]] = ContextVar("mode", default=())
"""What a wrapper must ask at each call: the mode of the process, and of the blocks around."""


class Empty(Tensor):
    """The floor of interception: a `__torch_function__` that returns at once."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del func, types, args, kwargs


class Bare(Tensor):
    """The floor of an operation on a handle: it is intercepted, and run as it is."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run_plain(func, types, args, kwargs or {})


def bare(x: Tensor) -> Any:
    """Return a handle of `x` that lets everything through."""
    handle: Any = x.view_as(x) if x.requires_grad else x.detach()
    handle.__class__ = Bare
    return handle


def off(forward: Any) -> Any:
    """Return the floor of mode off: a wrapper that asks the mode and calls on."""
    mode = ["off"]

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if mode[0] == "off":
            return forward(*args, **kwargs)
        return None

    return guarded


def floor(forward: Any) -> Any:
    """Return the floor of a guarded forward with one tensor.

    Each line is one that some promise needs: the mode of this thread or task; tracing, transforms and
    dispatch modes, under which a handle would be wrong; another layout; the alias, in the graph
    where a gradient flows; its class; what it stands for; and afterwards the version, the result,
    and whether the handle was kept.
    """
    unseen, blocks, refcount = [0], _BLOCKS.get, sys.getrefcount
    transforms, dispatching = torch._C._are_functorch_transforms_active, _dispatch_modes
    tracing, strided = torch._C._get_tracing_state, torch.strided

    @functools.wraps(forward)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (blocks() or MODE)[-1] == "off" or len(args) != 1 or type(x := args[0]) is not Tensor:
            return forward(self, *args, **kwargs)
        if x.layout is not strided or transforms() or dispatching() or tracing():
            return forward(self, *args, **kwargs)
        version = x._version
        handle: Any = x[...] if x.requires_grad else x.detach()
        handle.__class__ = Bare
        handle._stands_for = (x, self, "x")
        out = forward(self, handle, **kwargs)
        if x._version != version or refcount(handle) > 2:
            unseen[0] += 1
        return x if out is handle else out

    return guarded


def floor_of(module: nn.Module, *, submodules: bool = False) -> nn.Module:
    """Put the floor of a guard around the forward of a module, or of all of its submodules."""
    for part in module.modules() if submodules else (module,):
        part.forward = types.MethodType(floor(type(part).forward), part)
    return module
