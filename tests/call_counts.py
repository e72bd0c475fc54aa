"""How many Python functions of the library run per guarded call and per operation.

A cost that can be counted, on any machine. `python -m tests.call_counts` writes the numbers to
call_counts.json; the test fails when one of them grows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import safemodule
from safemodule import SafeModule, freeze

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).with_suffix(".json")
_HERE = str(Path(safemodule.__file__).parent)


class _Constant(SafeModule):
    result = torch.zeros(1)

    def forward(self, x: Any, y: Any = None, z: Any = None) -> torch.Tensor:
        return self.result


class _Same(SafeModule):
    def forward(self, x: Any) -> Any:
        return x


class _Off(_Constant, mode="off"):
    pass


def calls(run: Callable[[], object]) -> int:
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


def measure() -> dict[str, int]:
    """Return the counts."""
    constant, same, off = _Constant(), _Same(), _Off()
    x, w = torch.zeros(8), torch.zeros(8, requires_grad=True)
    held, written = freeze(torch.zeros(8)), freeze(torch.zeros(8))
    written.add_(1)
    return {
        "call, one tensor": calls(lambda: constant(x)),
        "call, one tensor with a gradient": calls(lambda: constant(w)),
        "call, returns its input": calls(lambda: same(x)),
        "call, three tensors": calls(lambda: constant(x, w, x)),
        "call, a dict of two": calls(lambda: constant({"a": x, "b": w})),
        "call, off": calls(lambda: off(x)),
        "x + x": calls(lambda: held + held),
        "x.shape": calls(lambda: held.shape),
        "x[0]": calls(lambda: held[0]),
        "x.add_(1), the first": calls(lambda: freeze(x).add_(1)),
        "x.add_(1), again": calls(lambda: written.add_(1)),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1) + "\n")
    sys.stdout.write(FILE.read_text())
