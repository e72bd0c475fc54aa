"""Rule 7: `set_` and `as_subclass` bypass `__torch_function__` and are methods of the handle."""

from __future__ import annotations

import pytest
import torch

from safemodule import InputMutationError, mode, record
from tests.helpers import Caller, forward_of, is_plain, same


def test_set_to_another_tensor():
    """The module's tensor gets the other memory; the caller's keeps its own."""

    def forward(x, y):
        x.set_(y)
        return x * 1

    x, y = torch.zeros(3), torch.ones(2)
    caller = Caller(x, y)
    with record() as log:
        assert forward_of(forward)(x, y).tolist() == [1, 1]
    caller.check()
    assert [(m.op, m.argument) for m in log] == [("set_", "x")]


def test_set_to_another_input_then_written():
    """The memory of the other input is not the module's to write."""

    def forward(x, y):
        x.set_(y)
        x.add_(1)
        return x * 1

    x, y = torch.zeros(3), torch.ones(2)
    caller = Caller(x, y)
    assert forward_of(forward)(x, y).tolist() == [2, 2]
    caller.check()


def test_set_to_a_storage():
    """With a storage, offset and sizes; and with nothing, which empties it."""

    def forward(x):
        x.set_(torch.arange(4.0).untyped_storage(), 1, (2,), (1,))
        y = x * 1
        x.set_()
        return y, x.numel()

    x = torch.zeros(3)
    caller = Caller(x)
    y, n = forward_of(forward)(x)
    assert (y.tolist(), n) == ([1, 2], 0)
    caller.check()


def test_set_is_refused_in_strict_mode():
    """With nothing changed."""
    x = torch.zeros(3)
    caller = Caller(x)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(lambda x: x.set_(torch.ones(2)))(x)
    assert caught.value.mutation.op == "set_"
    caller.check()


class Marked(torch.Tensor):
    """A subclass of the user's."""


def test_as_subclass():
    """The other class knows nothing of handles: it gets memory that may be written."""

    def forward(x):
        y = x.as_subclass(Marked)
        y.add_(1)
        return y, x * 1

    x = torch.zeros(3)
    caller = Caller(x)
    y, z = forward_of(forward)(x)
    caller.check()
    assert type(y) is Marked
    assert y.tolist() == [1, 1, 1]
    assert z.tolist() == [1, 1, 1]  # they share memory, as in a plain module


def test_as_subclass_of_the_plain_class():
    """`x.as_subclass(torch.Tensor)` still is protected."""

    def forward(x):
        y = x.as_subclass(torch.Tensor)
        y.add_(1)
        return x * 1

    x = torch.zeros(3)
    caller = Caller(x)
    with record() as log:
        same(forward_of(forward)(x), torch.ones(3))
    caller.check()
    assert [(m.op, m.argument) for m in log] == [("add_", "x")]


def test_set_on_a_view():
    """A view that is set elsewhere leaves the input alone."""

    def forward(x):
        v = x[:2]
        v.set_(torch.ones(1))
        v.add_(1)
        return x * 1, v * 1

    x = torch.zeros(3)
    caller = Caller(x)
    a, b = forward_of(forward)(x)
    caller.check()
    assert (a.tolist(), b.tolist()) == ([0, 0, 0], [2])
    assert is_plain(a)


def test_view_set_to_another_tensor():
    """It is a view no more; the others follow the handle."""

    def forward(x):
        left, stays = x[0], x[1]
        left.set_(torch.ones(3))
        x.add_(1)
        x.add_(1)
        return left, stays

    x = torch.zeros(2, 2)
    caller = Caller(x)
    left, stays = forward_of(forward)(x)
    caller.check()
    assert (left.tolist(), stays.tolist()) == ([1, 1, 1], [2, 2])
