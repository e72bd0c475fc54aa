"""The cheapest code that could keep the promises: what nothing of this kind can go below.

Each floor does a part of what it must, and nothing else. No records, no redirects, no views, no
containers: what is measured above a floor is the price of these, and what is below a floor is lost
to Python and PyTorch. They are measured in the same turns as what they are floors of.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import Tensor, nn

_run_plain: Any = torch._C._disabled_torch_function_impl
MODE = ["copy"]
"""What a wrapper must ask at each call: the mode may have changed."""


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
    """Return the floor of a guarded forward: an alias in, version and result compared after."""
    mode, unseen = MODE, [0]

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if mode[0] == "off" or len(args) != 2 or type(x := args[1]) is not Tensor:
            return forward(*args, **kwargs)
        version = x._version
        handle: Any = x.view_as(x) if x.requires_grad else x.detach()
        handle.__class__ = Bare
        out = forward(args[0], handle, **kwargs)
        if x._version != version:
            unseen[0] += 1
        if out is handle:
            return x
        return out

    return guarded


def floor_of(module: nn.Module, *, submodules: bool = False) -> nn.Module:
    """Put the floor of a guard around the forward of a module, or of all of its submodules."""
    for part in module.modules() if submodules else (module,):
        part.forward = types.MethodType(floor(type(part).forward), part)
    return module
