"""Handles that cross into compiled code, for which a plain function stands here.

It takes ordinary tensors and containers, and what it writes is unseen. `tests/compat/test_compile.py`
has the compiler itself.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch

from safemodule import InputMutationError, freeze_inputs, mode, record
from safemodule._compile_boundary import _own_code, adapted
from safemodule._compile_compat import mark_compiled
from safemodule._tensor import FrozenTensor


class Pair(NamedTuple):
    """A namedtuple."""

    x: torch.Tensor
    y: object


@dataclasses.dataclass
class Batch:
    """A dataclass."""

    x: torch.Tensor
    note: str = ""


def compiled(function):
    """Return a function as `torch.compile` would leave it: what it gets is plain."""

    def run(*args):
        assert not any(type(arg) is FrozenTensor for arg in args)
        return function(*args)

    return adapted(run)


def guarded(function, *args, **options):
    """Call a guarded function, and return its result with the log."""
    with record() as log:
        out = freeze_inputs(**options)(function)(*args)
    return out, log


def test_the_same_handle_twice_and_its_views():
    """One input is made private once, whatever leads to it."""
    inner = compiled(lambda a, b, view: (a.add_(1), b.add_(1), view.mul_(2)))

    def forward(x):
        inner(x, x, x[:1])
        return x

    x = torch.zeros(2)
    out, log = guarded(forward, x)
    assert (x.tolist(), out.tolist()) == ([0, 0], [4, 2])
    assert [(m.op, m.argument, m.bytes_copied) for m in log] == [("run (compiled)", "x", 8)]


def test_containers_made_inside():
    """A namedtuple, a dataclass and a dict that hold handles."""

    def write(pair, batch, table):
        for tensor in (pair.x, pair.y[0], batch.x, table["z"]):
            tensor.add_(1)

    inner = compiled(write)

    def forward(x, y, z):
        inner(Pair(x, [y]), Batch(y), {"z": z})
        return x, y, z

    inputs = [torch.zeros(1) for _ in range(3)]
    out, log = guarded(forward, *inputs)
    assert [t.item() for t in inputs] == [0, 0, 0]
    assert [t.item() for t in out] == [1, 2, 1]
    assert {m.argument for m in log} == {"x", "y", "z"}


def test_changes_of_the_callers_containers():
    """What compiled code does to a dict, a list or an object is done to what stands in for it."""

    def change(table, items, batch, pool, queue):
        del table["gone"]
        table["new"] = table["x"] + 1
        items.append(items[0] * 2)
        batch.note = "seen"
        del batch.extra
        pool.mark = 1
        queue.append(queue.popleft() + 1)

    class Pool(dict):
        """A dict with attributes."""

    inner = compiled(change)

    def forward(table, items, batch, pool, queue):
        inner(table, items, batch, pool, queue)
        kept = table["new"], items[1], queue[0]
        return *kept, batch.note, hasattr(batch, "extra"), pool.mark

    table = {"x": torch.ones(1), "gone": 1}
    items, batch, pool = [torch.ones(1)], Batch(torch.ones(1)), Pool(k=torch.ones(1))
    queue = collections.deque([torch.ones(1)])
    batch.extra, pool.mark = 1, 0
    out, log = guarded(forward, table, items, batch, pool, queue)
    assert [*(t.item() for t in out[:3]), *out[3:]] == [2, 2, 2, "seen", False, 1]
    assert (list(table), len(items), batch.note, batch.extra) == (["x", "gone"], 1, "", 1)
    assert (pool.mark, queue[0].item()) == (0, 1)
    assert {m.kind for m in log} == {"container"}


def test_results_that_share_memory():
    """In a dict and a dataclass, they are views of the handle."""
    inner = compiled(lambda x: {"row": x[0], "batch": Batch(x[1]), "other": x.sum()})

    def forward(x):
        out = inner(x)
        out["row"].add_(1)
        out["batch"].x.add_(2)
        return x, out["other"]

    x = torch.zeros(2, 2)
    (out, total), log = guarded(forward, x)
    assert x.tolist() == [[0, 0], [0, 0]]
    assert out.tolist() == [[1, 1], [2, 2]]
    assert type(total) is torch.Tensor
    assert [m.op for m in log] == ["add_", "add_"]


def test_modes():
    """Refused in strict; written to a copy, and not on record, where the mode is off meanwhile."""
    inner = compiled(lambda x: x.add_(1))

    def softened(x):
        with mode("off"):
            inner(x)
        return x

    x = torch.zeros(1)
    with pytest.raises(InputMutationError, match="argument x"):
        guarded(lambda x: inner(x), x, mode="strict")
    out, log = guarded(softened, x, mode="strict")
    assert (x.item(), out.item(), len(log)) == (0, 1, 0)


def test_marks_for_the_compiler():
    """What `mark_dynamic` noted on an input is there on what crosses."""
    seen = []
    inner = compiled(lambda x: seen.append(vars(x).get("_dynamo_dynamic_indices")))
    x = torch.zeros(3)
    x.tag, x._dynamo_dynamic_indices = "mine", {0}
    guarded(lambda x: inner(x), x)
    assert seen == [{0}]


def test_value_that_autograd_kept():
    """What was saved of a private copy, before a further write, is a handle of its own."""
    inner = compiled(lambda x: x.mul_(0) + 7)

    def forward(x):
        x.add_(1)
        y = x * x
        x.add_(1)
        saved = y.grad_fn._saved_self
        assert type(saved) is FrozenTensor
        return inner(saved), x, y

    x = torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        (out, written, y), _ = guarded(forward, x * 1)
    assert (out.tolist(), written.tolist()) == ([7, 7], [3, 3])
    y.sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_without_handles():
    """Whatever holds none goes straight through."""
    inner = adapted(lambda *args: args)
    given = (torch.ones(1), collections.OrderedDict(x=1), [Batch(torch.ones(1))], "s")
    assert all(a is b for a, b in zip(inner(*given), given, strict=True))


def test_code_that_is_never_compiled():
    """The mechanism's own, but for what the compiler has to read."""
    files = {code.co_filename.rpartition("/")[2] for code in _own_code()}
    assert "_redirect.py" in files
    assert not files & {"_compile.py", "_compile_tensor.py"}


def test_mark_of_compiled_code():
    """A wrapper carries the mark of its own, where there is one."""

    def wrapper():
        pass

    mark_compiled(wrapper)
    assert not hasattr(wrapper, "_torchdynamo_wrapper_id")
    wrapper._torchdynamo_wrapper_id = 0
    mark_compiled(wrapper)
    assert wrapper._torchdynamo_wrapper_id == id(wrapper)
