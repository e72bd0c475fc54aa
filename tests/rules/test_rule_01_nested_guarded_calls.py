"""Rule 1: what an inner guarded call returns of an outer's input comes back as the outer's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze_inputs
from safemodule._tensor import FrozenTensor
from tests.helpers import Caller, same


class Identity(SafeModule):
    """Returns its input."""

    def forward(self, x):
        return x


class Dropout(SafeModule):
    """Returns its input in evaluation."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=False)


class Row(SafeModule):
    """Returns a view."""

    def forward(self, x):
        return x[0]


class Corner(SafeModule):
    """Returns a view of a view, in a container."""

    def forward(self, x):
        rows = x[1:]
        return {"corner": rows.t()[0]}


@pytest.mark.parametrize("inner", [Identity(), Dropout()])
def test_an_unwritten_input_comes_back_as_the_very_handle(inner):
    """Identity, and dropout in evaluation."""

    @freeze_inputs
    def outer(x):
        assert inner(x) is x
        y = inner(inner(x))
        y.add_(1)
        return x * 1

    x = torch.zeros(2, 2)
    caller = Caller(x)
    assert outer(x).tolist() == [[1, 1], [1, 1]]
    caller.check()


def test_a_view_comes_back_as_a_view_of_the_outers_input():
    """A write to it goes to the outer's copy, and shows in the outer's input."""
    inner = Row()

    @freeze_inputs
    def outer(x):
        v = inner(x)
        assert type(v) is FrozenTensor
        v.add_(1)
        return x * 1

    x = torch.zeros(2, 2)
    caller = Caller(x)
    assert outer(x).tolist() == [[1, 1], [0, 0]]
    caller.check()


@pytest.mark.parametrize("first", [False, True], ids=["read first", "written first"])
def test_such_a_view_follows_later_writes(first):
    """It is not stale at the next redirect, in value and in gradient."""
    inner = Row()

    @freeze_inputs
    def outer(x):
        if first:
            x.mul_(2)
        v = inner(x)
        y = v * v
        x.mul_(3)
        return y, v * 1

    x = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    y, v = outer(x)
    k = 2 if first else 1
    same(y.detach(), (x[0] * k).detach() ** 2)
    same(v.detach(), (x[0] * k * 3).detach())
    (grad,) = torch.autograd.grad(y.sum() + v.sum(), x)
    same(grad[0], (2 * x[0] * k * k + 3 * k).detach(), exact=False)
    assert grad[1].tolist() == [0, 0]


def test_a_chain_of_views_in_a_container():
    """The whole chain is made again on the outer's handle."""
    inner = Corner()

    @freeze_inputs
    def outer(x):
        v = inner(x)["corner"]
        x.add_(1)
        v.mul_(2)
        return x * 1

    x = torch.zeros(3, 2)
    caller = Caller(x)
    assert outer(x).tolist() == [[1, 1], [2, 1], [2, 1]]
    caller.check()


def test_unguarded_modules_in_between_need_nothing():
    """A plain Sequential between two guarded modules."""
    net = nn.Sequential(nn.Identity(), Identity(), nn.Flatten(0), Identity())

    @freeze_inputs
    def outer(x):
        v = net(x)
        v.add_(1)
        return x * 1

    x = torch.zeros(2, 2)
    caller = Caller(x)
    assert outer(x).tolist() == [[1, 1], [1, 1]]
    caller.check()


def test_three_levels_deep():
    """Every level returns the input of the one above."""

    def wrap(function):
        return freeze_inputs(lambda x: function(x))

    deep = wrap(wrap(wrap(lambda x: x)))

    @freeze_inputs
    def outer(x):
        y = deep(x)
        assert y is x
        y.zero_()
        return y

    x = torch.ones(2)
    out = outer(x)
    assert x.tolist() == [1, 1]
    assert out.tolist() == [0, 0]
    assert out is not x


def test_an_inner_write_stays_with_the_inner():
    """The inner's copy is the inner's result; the outer's input is as it was."""

    @freeze_inputs
    def inner(x):
        return x.add_(1)

    @freeze_inputs
    def outer(x):
        y = inner(x)
        y.mul_(10)
        return x * 1, y

    x = torch.zeros(2)
    caller = Caller(x)
    a, b = outer(x)
    caller.check()
    assert a.tolist() == [0, 0]
    assert b.tolist() == [10, 10]
