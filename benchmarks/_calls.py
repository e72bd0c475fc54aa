"""What a call costs that writes nothing: by the size, the number and the nesting of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks import _measure as measure
from benchmarks._table import Setting, Table
from benchmarks._variants import HAND, classes

if TYPE_CHECKING:
    from collections.abc import Callable


def returns_constant(result: Tensor) -> Callable[..., Tensor]:
    """Return a forward that does nothing."""

    def forward(self: nn.Module, *args: Any) -> Tensor:
        del self, args
        return result

    return forward


def with_one_input(result: Tensor) -> dict[str, nn.Module]:
    """Return modules of one input whose forward does nothing; by hand it is `x = x.clone()`, literally."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        del self, x
        return result

    def cloning(self: nn.Module, x: Tensor) -> Tensor:
        del self
        x = x.clone()
        return result

    modules = classes(forward)
    modules[HAND] = type("ByHand", (nn.Module,), {"forward": cloning})()
    return modules


def case(module: Any, *args: Any) -> measure.Case:
    """Return a call of a module."""
    return lambda: module(*args)


def call_cost(setting: Setting) -> Table:
    """Fixed cost of a call that writes nothing, by tensor size."""
    modules = with_one_input(torch.zeros(1, device=setting.device))
    variants = [name for name in modules if name != "plain"]
    table = Table(
        "call",
        "Added time of a call that writes nothing, by size of its one input",
        "us over plain",
        ["elements", "gradient", *variants, "SafeModule / clone", "floor / clone"],
        x="elements",
        drawn=variants,
        note="Every variant gets the same tensor. `floor` is the cheapest wrapper that could keep the "
        "promises of a call that writes nothing (`benchmarks/_floors.py` says what each line of it "
        "is for); `floor off` only asks the mode and calls on.",
    )
    sizes = [8, 2**10, 2**24] if setting.quick else [8, 2**10, 2**14, 2**18, 2**22, 2**24, 2**26]
    for grad in (False, True):
        for size in sizes:
            measure.progress(f"call: {size} elements, gradient {grad}")
            x = torch.zeros(size, device=setting.device, requires_grad=grad)
            found = setting.turns({name: case(module, x) for name, module in modules.items()})
            row = table.add(elements=size, gradient=grad)
            row["plain"] = found.time("plain", 1e6)
            row |= {name: found.added(name) for name in variants}
            row["SafeModule / clone"] = found.added_ratio("SafeModule", HAND)
            row["floor / clone"] = found.added_ratio("floor", HAND)
    return table


def inputs_cost(setting: Setting) -> Table:
    """Fixed cost by number and nesting of inputs."""
    modules = classes(returns_constant(torch.zeros(1, device=setting.device)))
    variants = [HAND, "copy.deepcopy", "SafeModule", "SafeModule off"]
    table = Table(
        "inputs",
        "Added time of a call that writes nothing, by number and nesting of its inputs (8 elements)",
        "us over plain",
        ["inputs", *variants, "SafeModule / clone"],
        drawn=variants,
    )

    def make() -> Tensor:
        return torch.zeros(8, device=setting.device)

    shapes: dict[str, tuple[Any, ...]] = {
        "1 tensor": (make(),),
        "2 tensors": (make(), make()),
        "4 tensors": tuple(make() for _ in range(4)),
        "16 tensors": tuple(make() for _ in range(16)),
        "dict of 4": ({str(i): make() for i in range(4)},),
        "list of 16": ([make() for _ in range(16)],),
        "dict of 4 lists of 4": ({str(i): [make() for _ in range(4)] for i in range(4)},),
    }
    for name, args in shapes.items():
        measure.progress(f"inputs: {name}")
        found = setting.turns({v: case(modules[v], *args) for v in ("plain", *variants)})
        row = table.add(inputs=name)
        row |= {variant: found.added(variant) for variant in variants}
        row["SafeModule / clone"] = found.added_ratio("SafeModule", HAND)
    return table
