"""The same module in each way to protect its inputs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks import _floors
from safemodule import SafeModule, guard

if TYPE_CHECKING:
    from collections.abc import Callable

HAND = "x = x.clone() by hand"
LAZY = ("torch._lazy_clone",) if hasattr(torch, "_lazy_clone") else ()
COPIES = (HAND, "copy.deepcopy", *LAZY)
"""The ways that copy on entry, or ask PyTorch to."""
GUARDS = (
    "SafeModule", "SafeModule strict", "SafeModule off", "SafeModule snapshot", "guard()",
)  # fmt: skip
FLOORS = ("floor", "floor off")
KEEPERS = (*COPIES, "SafeModule", "SafeModule snapshot")
"""The ways that let a module write its inputs and keep the caller's."""


def copier(name: str) -> Callable[[Any], Any]:
    """Return what copies one input, containers included."""
    if name == "copy.deepcopy":
        return copy.deepcopy
    one = torch.clone if name == HAND else torch._lazy_clone

    def each(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return one(x)
        if isinstance(x, dict):
            return {key: each(value) for key, value in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x)(each(value) for value in x)
        return x

    return each


def by_hand(forward: Callable[..., Any], each: Callable[[Any], Any]) -> type[nn.Module]:
    """Return a module class whose forward copies its tensors with `each` on entry."""

    class ByHand(nn.Module):
        def forward(self, *args: Any) -> Any:
            return forward(self, *[each(a) for a in args])

    return ByHand


class Strict(SafeModule, mode="strict"):
    """A base class for strict modules."""


class Off(SafeModule, mode="off"):
    """A base class for modules that are not guarded."""


class Snapshot(SafeModule, snapshot=True):
    """A base class for modules that get snapshots."""


BASES: dict[str, type[nn.Module]] = {
    "plain": nn.Module,
    "SafeModule": SafeModule,
    "SafeModule strict": Strict,
    "SafeModule off": Off,
    "SafeModule snapshot": Snapshot,
}


def classes(forward: Callable[..., Any]) -> dict[str, nn.Module]:
    """Return one module of each variant with the given `forward(self, *tensors)`."""
    made: dict[str, nn.Module] = {
        name: type("Module", (base,), {"forward": forward})() for name, base in BASES.items()
    }
    made |= {name: by_hand(forward, copier(name))() for name in COPIES}
    made["guard()"] = type("Guarded", (nn.Module,), {"forward": forward})()
    guard(made["guard()"])
    made["floor"] = type("Floor", (nn.Module,), {"forward": _floors.floor(forward)})()
    made["floor off"] = type("Floor", (nn.Module,), {"forward": _floors.off(forward)})()
    return {name: made[name] for name in ("plain", *COPIES, *GUARDS, *FLOORS)}
