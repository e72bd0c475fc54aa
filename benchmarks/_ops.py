"""What one operation on a frozen input costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks import _measure as measure
from benchmarks._floors import Empty, bare
from benchmarks._table import Setting, Table
from safemodule import freeze

if TYPE_CHECKING:
    from collections.abc import Callable

EMPTY = "empty __torch_function__"


def op_cost(setting: Setting) -> Table:
    """Cost of one operation on a frozen input."""
    table = Table(
        "ops",
        "Time of one operation on a frozen input (8 elements)",
        "us",
        ["operation", "plain", "frozen", "added", EMPTY, "added / empty", "floor / empty"],
        drawn=["plain", "frozen", EMPTY],
        note="`empty` is a `__torch_function__` that returns at once. The floor is one that runs the "
        "operation with interception off and does nothing else.",
    )
    x = torch.rand(8, device=setting.device) + 0.5
    square = torch.rand(4, 4, device=setting.device)
    operations: dict[str, tuple[Tensor, Callable[[Any], Any]]] = {
        "x + x": (x, lambda t: t + t),
        "x * 2.0": (x, lambda t: t * 2.0),
        "torch.sin(x)": (x, torch.sin),
        "x.sum()": (x, lambda t: t.sum()),
        "F.relu(x)": (x, nn.functional.relu),
        "m @ m": (square, lambda t: t @ t),
        "x.shape": (x, lambda t: t.shape),
        "x.size(0)": (x, lambda t: t.size(0)),
        "x[0]": (x, lambda t: t[0]),
        "m.t()": (square, lambda t: t.t()),
        "x.view(2, 4)": (x, lambda t: t.view(2, 4)),
    }
    for name, (tensor, run) in operations.items():
        measure.progress(f"ops: {name}")
        empty: Any = tensor.detach()
        empty.__class__ = Empty
        held, thin = freeze(tensor), bare(tensor)
        found = setting.turns(
            {
                "plain": lambda: run(tensor),
                "empty": lambda: run(empty),
                "frozen": lambda: run(held),
                "floor": lambda: run(thin),
            }
        )
        row = table.add(operation=name)
        row |= {key: found.time(key, 1e6) for key in ("plain", "frozen")}
        row |= {"added": found.added("frozen"), EMPTY: found.time("empty", 1e6)}
        row["added / empty"] = found.added_over("frozen", "empty")
        row["floor / empty"] = found.added_over("floor", "empty")
    written, own = freeze(x), x.clone()
    written.add_(1)
    found = setting.turns({"plain": lambda: own.add_(1), "frozen": lambda: written.add_(1)})
    row = table.add(operation="x.add_(1), again")
    row |= {key: found.time(key, 1e6) for key in ("plain", "frozen")}
    row["added"] = found.added("frozen")
    return table
