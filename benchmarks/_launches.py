"""Kernels that guarding starts: none where nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks import _measure as measure
from benchmarks._calls import case
from benchmarks._table import Setting, Table
from benchmarks._variants import HAND, LAZY, classes

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN = (HAND, *LAZY, "SafeModule", "SafeModule snapshot", "guard()")


def _reads(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return (x[:4] * 2 + y.t().t()[:4]).sum()


def _returns(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return y


def _writes_one(self: Any, x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    x.mul_(2)
    return x + y


def _writes_both(self: Any, x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y[0] = 1.0
    return x + y


FORWARDS: dict[str, Callable[..., Tensor]] = {
    "reads, and makes views": _reads,
    "returns an input": _returns,
    "writes one of two, twice": _writes_one,
    "writes both": _writes_both,
}


def kernel_launches(setting: Setting) -> Table:
    """Kernels and copies added to a call."""
    table = Table(
        "launches",
        "Kernels and copies started by one call with two inputs",
        "number over plain",
        ["forward", "plain", *SHOWN],
        note="Counted by the profiler: on CUDA what the device did, on a CPU the innermost operators "
        "that compute or copy.",
        drawn=list(SHOWN),
    )
    x, y = (torch.ones(64, 64, device=setting.device) for _ in range(2))
    for name, forward in FORWARDS.items():
        measure.progress(f"launches: {name}")
        modules = classes(forward)
        plain = measure.launches(case(modules["plain"], x, y), setting.device)
        row = table.add(forward=name, plain=plain)
        for variant in SHOWN:
            found = measure.launches(case(modules[variant], x, y), setting.device)
            row[variant] = found - plain
    return table
