"""What a guarded call and an operation cost, counted: the same on any machine, busy or not.

Counted are the Python functions of the library that run, and the operators of PyTorch: an alias, a
view and a copy are one each. `python -m tests.call_counts` writes the numbers to call_counts.json;
the test fails when one of them grows.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import safemodule
from safemodule import SafeModule, freeze, freeze_inputs, guard

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).with_suffix(".json")
_HERE = str(Path(safemodule.__file__).parent)


def constant(base: Any = SafeModule, **keywords: Any) -> Any:
    """Return a module that does nothing, of a class of its own: a guard learns what it is given."""
    result = torch.zeros(1)

    class Constant(base, **keywords):
        def forward(self, x: Any, y: Any = None, z: Any = None) -> torch.Tensor:
            return result

    return Constant()


class _Same(SafeModule):
    def forward(self, x: Any) -> Any:
        return x


def functions(run: Callable[[], object]) -> int:
    """Return how many functions of the package one run enters."""
    run()
    run()
    count = 0

    def profile(frame: Any, event: str, arg: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(_HERE):
            count += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def operators(run: Callable[[], object]) -> int:
    """Return how many operators one run calls, those within others left out."""
    run()
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        run()
    return sum(
        event.name.startswith("aten::") and event.cpu_parent is None
        for event in profile.function_events
    )


def runs() -> dict[str, Callable[[], object]]:
    """Return what is counted."""
    one, many, named, nested = constant(), constant(), constant(), constant()
    same, off, snapshot = _Same(), constant(mode="off"), constant(snapshot=True)
    foreign = constant(torch.nn.Module)
    guard(foreign)  # holds as long as the module lives
    function = freeze_inputs(lambda x: None)
    x, w = torch.zeros(8), torch.zeros(8, requires_grad=True)
    held, written = freeze(torch.zeros(8)), freeze(torch.zeros(8))
    written.add_(1)
    view, of_written = held[:4], written[:4]
    return {
        "call, one tensor": lambda: one(x),
        "call, one tensor with a gradient": lambda: one(w),
        "call, returns its input": lambda: same(x),
        "call, of a function": lambda: function(x),
        "call, under guard()": lambda: foreign(x),
        "call, three tensors": lambda: many(x, w, x),
        "call, a keyword": lambda: named(x=x),
        "call, a list of two": lambda: nested([x, w]),
        "call, a dict of two": lambda: nested({"a": x, "b": w}),
        "call, a dict of lists": lambda: nested({"a": [x, w], "b": [x]}),
        "call, a snapshot": lambda: snapshot(x),
        "call, off": lambda: off(x),
        "x + x": lambda: held + held,
        "x + x, of a view": lambda: view + view,
        "x.shape": lambda: held.shape,
        "x.size(0)": lambda: held.size(0),
        "x[0]": lambda: held[0],
        "x[0], of a view": lambda: view[0],
        "x.view(2, 4)": lambda: held.view(2, 4),
        "x.split(4)": lambda: held.split(4),
        "x.add_(1), the first": lambda: freeze(x).add_(1),
        "x[0].add_(1), the first": lambda: freeze(x)[0].add_(1),
        "x.add_(1), again": lambda: written.add_(1),
        "x[0] = 1, again": lambda: written.__setitem__(0, 1.0),
        "x[:4].add_(1), again": lambda: of_written.add_(1),
    }


def measure() -> dict[str, dict[str, int]]:
    """Return the counts."""
    return {
        name: {"functions": functions(run), "operators": operators(run)}
        for name, run in runs().items()
    }


if __name__ == "__main__":
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler's own notes
    logging.disable()
    FILE.write_text(json.dumps(measure(), indent=1) + "\n")
    sys.stdout.write(FILE.read_text())
