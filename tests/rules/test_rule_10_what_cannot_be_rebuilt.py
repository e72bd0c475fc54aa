"""Rule 10: handles inside unknown objects, closures and `self` stay, and stay protective."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree

from safemodule import SafeModule, freeze_inputs, record
from safemodule._tensor import FrozenTensor
from tests.helpers import Caller, assert_plain, is_plain


class Stash(SafeModule):
    """Keeps its input, and a view of it."""

    def forward(self, x):
        self.kept = x
        self.view = x[:1]
        return x.sum()


def test_stash_on_self_stays_protective():
    """What is kept on the module is written later: the caller's tensor is not."""
    net = Stash()
    x = torch.zeros(3)
    caller = Caller(x)
    net(x)
    with record() as log:
        net.kept.add_(1)
        net.view.add_(1)
    caller.check()
    assert net.kept.tolist() == [2, 1, 1]
    assert net.view.tolist() == [2]
    assert [(m.op, m.argument) for m in log] == [("add_", "x"), ("add_", "x")]


def test_stash_survives_several_calls():
    """Each call has its own handle; an earlier one keeps its value."""
    net = Stash()
    x, y = torch.zeros(3), torch.ones(3)
    net(x)
    first = net.kept
    net(y)
    first.add_(5)
    net.kept.add_(7)
    assert (x.tolist(), y.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert (first.tolist(), net.kept.tolist()) == ([5, 5, 5], [8, 8, 8])


def test_stash_is_returned_by_a_later_call():
    """A handle of an ended call comes back plain, as the caller's own tensor if unwritten."""

    class Late(SafeModule):
        def __init__(self):
            super().__init__()
            self.kept = None

        def forward(self, x):
            kept, self.kept = self.kept, x
            return kept

    net = Late()
    x = torch.zeros(3)
    assert net(x) is None
    out = net(torch.ones(3))
    assert is_plain(out)
    assert out is x


def test_stash_of_an_outer_call_is_left_alone():
    """An inner call hands out a handle of the outer's that still runs."""
    inner_sees = []

    @freeze_inputs
    def inner(y):
        return inner_sees[0]

    @freeze_inputs
    def outer(x):
        inner_sees.append(x)
        out = inner(x * 1)
        assert out is x
        assert type(out) is FrozenTensor
        out.add_(1)
        return x * 1

    x = torch.zeros(2)
    assert outer(x).tolist() == [1, 1]
    assert x.tolist() == [0, 0]


def test_unknown_object():
    """A handle put on an unknown object stays one."""

    @freeze_inputs
    def forward(x):
        return types.SimpleNamespace(x=x, y=x * 1)

    x = torch.zeros(2)
    out = forward(x)
    out.x.add_(1)
    assert x.tolist() == [0, 0]
    assert out.x.tolist() == [1, 1]


def test_closure_and_generator():
    """What is handed out as code keeps its handle."""

    @freeze_inputs
    def forward(x):
        def items():
            for row in x:
                row.add_(1)
                yield row * 1

        return items(), lambda: x.mul_(3)

    x = torch.ones(2, 2)
    items, triple = forward(x)
    assert [row.tolist() for row in items] == [[2, 2], [2, 2]]
    assert triple().tolist() == [[6, 6], [6, 6]]
    assert x.tolist() == [[1, 1], [1, 1]]


@dataclasses.dataclass
class Plain:
    """A dataclass."""

    x: Any
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen one."""

    x: Any


class Named(NamedTuple):
    """A named tuple."""

    x: Any


class Registered:
    """A class registered with PyTorch's pytree."""

    def __init__(self, x):
        self.x = x


pytree.register_pytree_node(Registered, lambda r: ([r.x], None), lambda xs, _: Registered(xs[0]))


@pytest.mark.parametrize(
    "wrap",
    [
        Plain, Frozen, Named, Registered, lambda x: [x], lambda x: (x, [x]), lambda x: {"k": x},
        lambda x: Plain({"a": [x[0]]}, (Frozen(x),)), lambda x: Registered([x[:1]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("write", [False, True], ids=["read", "written"])
def test_outputs_in_rebuildable_containers_are_plain(wrap, write):
    """Whatever the nesting."""

    @freeze_inputs
    def forward(x):
        if write:
            x.add_(1)
        return wrap(x)

    assert_plain(forward(torch.zeros(2)))


def test_unwritten_inputs_inside_outputs_are_the_callers_objects():
    """Same object, also deep inside."""

    @freeze_inputs
    def forward(x):
        return Plain([x], {"x": (x, Frozen(x))}), Registered(x)

    x = torch.zeros(2)
    a, b = forward(x)
    assert a.x[0] is x
    assert a.more["x"][0] is x
    assert a.more["x"][1].x is x
    assert b.x is x


def test_the_modules_own_container_is_the_same_object():
    """A list that the module also keeps is emptied of handles in place."""

    class Keeps(SafeModule):
        def forward(self, x):
            self.out = [x, x[:1]]
            return self.out

    net = Keeps()
    x = torch.zeros(2)
    out = net(x)
    assert out is net.out
    assert out[0] is x
    assert_plain(out)
