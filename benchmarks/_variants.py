"""The same module in each way to protect its inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from safemodule import SafeModule

Make = Callable[[type[nn.Module]], nn.Module]


def by_hand(forward: Callable[..., Any], clone: Callable[[Any], Any]) -> type[nn.Module]:
    """Return a module class whose forward clones its tensors with `clone` on entry."""

    class ByHand(nn.Module):
        def forward(self, *args: Any) -> Any:
            args = tuple([clone(a) for a in args])
            return forward(self, *args)

    return ByHand


def classes(forward: Callable[..., Any]) -> dict[str, nn.Module]:
    """Return one module of each variant with the given `forward(self, *tensors)`."""

    def clone(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else _over(x, clone)

    def lazy(x: Any) -> Any:
        return torch._lazy_clone(x) if isinstance(x, torch.Tensor) else _over(x, lazy)

    plain = type("Plain", (nn.Module,), {"forward": forward})
    made = {
        "plain": plain(),
        "x = x.clone() by hand": by_hand(forward, clone)(),
        "copy.deepcopy": by_hand(forward, copy.deepcopy)(),
        "torch._lazy_clone": by_hand(forward, lazy)(),
        "SafeModule": type("Safe", (SafeModule,), {"forward": forward})(),
        "SafeModule strict": type("Strict", (SafeModule,), {"forward": forward}, mode="strict")(),
        "SafeModule off": type("Off", (SafeModule,), {"forward": forward}, mode="off")(),
        "SafeModule snapshot": type("Snap", (SafeModule,), {"forward": forward}, snapshot=True)(),
    }
    return {name: module for name, module in made.items() if name != "torch._lazy_clone" or _lazy()}


def _over(x: Any, each: Callable[[Any], Any]) -> Any:
    if isinstance(x, dict):
        return {key: each(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(each(value) for value in x)
    return x


def _lazy() -> bool:
    return hasattr(torch, "_lazy_clone")
