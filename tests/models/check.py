"""One architecture: plain, with SafeModule on top, and with every submodule guarded."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from safemodule import SafeModule, guard, record
from tests.models.zoo import inputs_of, model_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Row:
    """What was found for one architecture."""

    name: str
    submodules: int = 0
    faults: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    slowdown: float = 1.0

    @property
    def equal(self) -> bool:
        return not self.faults


def run(model: Any, inputs: dict[str, Any], *, train: bool) -> tuple[list[Any], list[Any]]:
    """Return outputs and gradients of one pass."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 -- what transformers masks audio with
    model.train(train)
    model.zero_grad()
    if not train:
        with torch.no_grad():
            return tensors_of(model(**inputs)), []
    outputs = [t for t in tensors_of(model(**inputs)) if t.requires_grad]
    sum(t.float().square().mean() for t in outputs).backward()
    return [t.detach() for t in outputs], [p.grad for p in model.parameters()]


def same(a: list[Any], b: list[Any]) -> bool:
    """Tell whether two lists of tensors are equal to the bit."""
    return len(a) == len(b) and all(
        x is y or (x is not None and y is not None and type(x) is type(y)
                   and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)))
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def close(a: list[Any], b: list[Any]) -> bool:
    """Tell whether gradients agree to rounding.

    A handle is one more node of the graph, so where an input is used several times the sum of its
    gradients is taken in another order.
    """
    return len(a) == len(b) and all(
        x is y or (x is not None and y is not None and type(x) is type(y)
                   and torch.allclose(x, y, rtol=1e-4, atol=1e-6 * (1 + float(x.abs().sum() / max(1, x.numel())))))
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def check(name: str) -> Row:
    """Compare the three ways to run one architecture."""
    row = Row(name)
    plain = model_of(name)
    inputs = inputs_of(plain)
    kept = copy.deepcopy(inputs)
    on_top = copy.deepcopy(plain)
    on_top.__class__ = type(type(plain).__name__, (SafeModule, type(plain)), {})
    everywhere = copy.deepcopy(plain)
    row.submodules = sum(1 for _ in plain.modules())
    for train in (True, False):
        kind = "train" if train else "eval"
        expected = run(plain, copy.deepcopy(inputs), train=train)
        if not all(torch.isfinite(t).all() for t in expected[0]):
            row.faults.append(f"{kind}: the plain model is not finite")
        versions = [t._version for t in inputs.values()]
        with record() as log:
            top = run(on_top, inputs, train=train)
        with record() as inner, guard(everywhere):
            all_ = run(everywhere, inputs, train=train)
        for way, found in (("SafeModule", top), ("guard", all_)):
            if not same(expected[0], found[0]):
                row.faults.append(f"{kind}, {way}: outputs differ")
            if not close(expected[1], found[1]):
                row.faults.append(f"{kind}, {way}: gradients differ")
        untouched = all(torch.equal(inputs[k], kept[k]) for k in kept)
        if not untouched or versions != [t._version for t in inputs.values()]:
            row.faults.append(f"{kind}: inputs changed")
        for m in (*log, *inner):
            where = f"{m.module.rsplit('.', 1)[-1]} {m.argument}: {m.op} line {m.lineno}"
            if where not in row.writes:
                row.writes.append(where)
    row.slowdown = slowdown(plain, everywhere, inputs)
    return row


def slowdown(plain: nn.Module, guarded: nn.Module, inputs: dict[str, Any]) -> float:
    """Return the time of inference with every submodule guarded over plain, best of five."""

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return min(times)

    plain.eval()
    guarded.eval()
    with torch.no_grad():
        base = best(lambda: plain(**inputs))
        with guard(guarded):
            return best(lambda: guarded(**inputs)) / base
