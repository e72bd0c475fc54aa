"""The interception: writes, metadata, exports, leaves, foreign subclasses; what is noted, and when."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

from safemodule import InputMutationError, freeze, freeze_inputs, mode, record
from tests.helpers import Caller, forward_of


def test_each_argument_written_by_one_call_is_noted():
    """In the order of the arguments."""

    def forward(x, a, b):
        torch.max(x, 0, out=(a, b))
        torch._foreach_add_([b, a], [1, 1.0])

    args = torch.rand(3, 2), torch.zeros(2), torch.zeros(2, dtype=torch.long)
    caller = Caller(*args)
    with record() as log:
        forward_of(forward)(*args)
    caller.check()
    assert [(m.op, m.argument) for m in log] == [
        ("max(out=)", "a"), ("max(out=)", "b"), ("_foreach_add_", "b"), ("_foreach_add_", "a"),
    ]  # fmt: skip


def test_two_views_of_one_input_are_one_write():
    """A list of views of the same handle is redirected and noted once."""

    def forward(x):
        torch._foreach_add_([x[0], x[1]], 1.0)
        return x * 1

    x = torch.zeros(2, 2)
    with record() as log:
        assert forward_of(forward)(x).tolist() == [[1, 1], [1, 1]]
    assert [(m.op, m.argument, m.count, m.bytes_copied) for m in log] == [
        ("_foreach_add_", "x", 1, 16)
    ]


def test_strict_refuses_before_any_of_several():
    """One call that writes three inputs changes none of them."""

    def forward(a, b, c):
        torch._foreach_add_([a, b, c], 1.0)

    args = [torch.zeros(1) for _ in range(3)]
    caller = Caller(*args)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(forward)(*args)
    caller.check()
    assert caught.value.mutation.argument == "a"


def test_arguments_that_are_only_read_are_not_written():
    """`x.add_(y)` writes x."""

    def forward(x, y):
        x.add_(y)
        x.copy_(y)
        x[y > 0] = y[y > 0]
        torch.add(y, y, out=x)
        x.lerp_(y, 0.5)

    with record() as log:
        forward_of(forward)(torch.zeros(2), torch.ones(2))
    assert {m.argument for m in log} == {"x"}
    assert len(log) == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False, inplace=True),
        lambda x: torch.nn.functional.dropout(x, 0.0, training=False),
        lambda x: torch.nn.functional.relu(x, inplace=False),
        lambda x: torch.nn.functional.embedding(torch.tensor([0]), x),
        lambda x: torch.nn.functional.batch_norm(torch.ones(2, 3), x[0], x[0].abs()),
        lambda x: x[[0]].clamp_(0, 1),
        lambda x: x.clone().add_(1),
        lambda x: torch.add(x, 1, out=torch.empty(2, 3)),
        lambda x: x.to(torch.float64).add_(1),
        lambda x: torch.zeros(2, 3).copy_(x),
        lambda x: x.requires_grad_(False),
        lambda x: x.detach_() if not x.requires_grad else x,
    ],
)
def test_no_false_alarm(call):
    """What writes nothing of an input is no mutation, in strict mode either."""
    x = torch.ones(2, 3)
    caller = Caller(x)
    with mode("strict"), record() as log:
        forward_of(lambda x: call(x))(x)
    caller.check()
    assert list(log) == []
    assert log.copies == ()


def test_log_once_per_site_and_debug_after(caplog):
    """A WARNING the first time a line writes an argument, DEBUG from then on."""

    @freeze_inputs
    def forward(x):
        x.add_(1)
        x.mul_(2)

    with caplog.at_level(logging.DEBUG, "safemodule"):
        for _ in range(3):
            forward(torch.zeros(1))
    levels = [(r.safemodule_mutation.op, r.levelname) for r in caplog.records]
    assert levels == [
        ("add_", "WARNING"), ("mul_", "WARNING"), ("add_", "DEBUG"), ("mul_", "DEBUG"),
        ("add_", "DEBUG"), ("mul_", "DEBUG"),
    ]  # fmt: skip


def test_quiet_sites_are_still_counted_by_a_record():
    """A site that was logged long ago shows in a record that begins now."""

    @freeze_inputs
    def forward(x):
        x.add_(1)

    forward(torch.zeros(2))
    with record() as log:
        for _ in range(5):
            forward(torch.zeros(2))
    assert [(m.op, m.count, m.bytes_copied) for m in log] == [("add_", 5, 40)]


def test_the_shape_on_record_is_the_inputs():
    """Not that of the view that was written."""

    def forward(x):
        x[0, 1:].add_(1)

    with record() as log:
        forward_of(forward)(torch.zeros(2, 3, dtype=torch.float16))
    assert (log[0].shape, log[0].dtype) == ((2, 3), "float16")


def test_returns_of_in_place_operations_are_the_target():
    """`x.add_(1) is x`, `torch.add(..., out=x) is x`, also for views."""

    def forward(x):
        assert x.add_(1) is x
        assert torch.add(x, 1, out=x) is x
        v = x[0]
        assert v.mul_(2) is v
        before = x
        x += 1
        assert x is before
        assert torch.relu_(x) is x
        assert torch.nn.functional.relu(x, inplace=True) is x
        assert x.requires_grad_(False) is x
        assert x.t_() is x
        return True

    assert forward_of(forward)(torch.zeros(2, 2))


def test_become_leaf():
    """`requires_grad_()` on an input makes the module's own leaf: the caller's is none."""

    def forward(x):
        assert x.requires_grad_() is x
        assert x.is_leaf
        y = (x**2).sum()
        y.backward()
        assert x.grad.tolist() == [2, 2]
        x.grad = None
        x.requires_grad = False
        x.requires_grad = True
        return x.requires_grad

    x = torch.ones(2)
    caller = Caller(x)
    assert forward_of(forward)(x)
    caller.check()
    assert x.grad is None


def test_a_leaf_made_inside_is_written():
    """Under no_grad, as an optimiser does; the caller's version counter stands still."""

    def forward(x):
        x.requires_grad_()
        (x**2).sum().backward()
        with torch.no_grad():
            x -= 0.5 * x.grad
        assert x.is_leaf
        return x.detach() * 1

    x = torch.ones(2)
    caller = Caller(x)
    assert forward_of(forward)(x).tolist() == [0, 0]
    caller.check()


def test_detach_in_place():
    """`detach_` cuts the module's tensor off, not the caller's."""

    def forward(x):
        x.detach_()
        assert not x.requires_grad
        return x * 2

    x = torch.ones(2, requires_grad=True) * 1
    caller = Caller(x)
    out = forward_of(forward)(x)
    caller.check()
    assert not out.requires_grad


def test_writes_of_a_handle_into_plain_tensors():
    """A plain tensor that takes a handle's values is nobody's input."""

    def forward(x):
        out = torch.zeros(3)
        out[:2] = x
        out.index_copy_(0, torch.tensor([2]), x[:1])
        bag = [torch.zeros(2)]
        bag[0].copy_(x)
        return out, bag[0]

    with record() as log:
        out, bag = forward_of(forward)(torch.ones(2))
    assert (out.tolist(), bag.tolist()) == ([1, 1, 1], [1, 1])
    assert list(log) == []


def test_data_setter_between_handles():
    """`a.data = b` and `a.data = b.data` copy values, never memory."""

    def forward(a, b):
        a.data = b
        a.add_(1)
        assert b.tolist() == [5, 5]
        b.add_(1)
        return a * 1, b * 1

    a, b = torch.zeros(2), torch.full((2,), 5.0)
    caller = Caller(a, b)
    out = forward_of(forward)(a, b)
    caller.check()
    assert [t.tolist() for t in out] == [[6, 6], [6, 6]]


def test_a_write_that_reads_the_same_input():
    """`x[1:] = x[:-1]` and friends, as on a clone."""

    def forward(x):
        x[1:] = x[:-1].clone()
        x[0] = x[1] + x[2]
        x.add_(x.flip(0))
        x.copy_(x.flip(0))
        return x * 1

    y = torch.arange(4.0)
    expected = forward(y.clone())
    assert forward_of(forward)(y).tolist() == expected.tolist()


def test_frozen_tensors_meet():
    """Handles of different calls in one operation."""
    a, b = freeze(torch.zeros(2), name="a"), freeze(torch.ones(2), name="b")
    with record() as log:
        a.add_(b)
        torch._foreach_mul_([a, b], 2.0)
    assert (a.tolist(), b.tolist()) == ([2, 2], [2, 2])
    assert [m.argument for m in log] == ["a", "a", "b"]


@pytest.mark.parametrize("gaps", [False, True])
def test_geometry_set_by_strides(gaps):
    """`as_strided_` changes the handle, and means the input's own geometry."""

    def forward(x):
        x.as_strided_((2,), (2,), 1)
        x.add_(1)
        return x

    x = torch.zeros(4, 2)[::2] if gaps else torch.zeros(2, 2)
    caller = Caller(x)
    out = forward_of(forward)(x)
    caller.check()
    assert (out.tolist(), out.shape) == ([1, 1], (2,))


def test_handle_among_the_numbers_of_a_metadata_write():
    """Only the tensor whose sizes change counts."""

    def forward(dim):
        return torch.zeros(1, 2).squeeze_(dim)

    dim = torch.tensor(0)
    with record() as log:
        assert forward_of(forward)(dim).shape == (2,)
    assert list(log) == []


def test_write_of_several_that_cannot_be_redirected():
    """It raises before anything has changed, and holds no lock: another thread may write."""

    def forward(a, b):
        weak = torch._C._WeakTensorRef(b)
        with pytest.raises(RuntimeError):
            torch._foreach_add_([a, b], 1.0)
        del weak
        thread = threading.Thread(target=a.add_, args=(2,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return a, b.add_(3)

    args = torch.zeros(1), torch.zeros(1)
    caller = Caller(*args)
    out = forward_of(forward)(*args)
    caller.check()
    assert [t.item() for t in out] == [2, 3]
