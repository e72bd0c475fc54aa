"""Rule 12: if the function raises, the record says that nothing was written."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch

from safemodule import record
from tests.helpers import Caller, forward_of, same


def wrong_shape(x):
    """Shapes that do not match."""
    x.add_(torch.ones(7))


def wrong_index(x):
    """An index out of range."""
    x[99] = 1.0


def wrong_dtype(x):
    """A result that cannot be cast."""
    x.to(torch.long).add_(1)
    torch.add(x, 1, out=x.long())
    x.long().div_(2)


def wrong_argument(x):
    """No such argument."""
    x.clamp_(minimum=3)


def refused_by_autograd(x):
    """`out=` takes no tensors that require grad."""
    torch.mul(x, 2, out=x)


CASES = [wrong_shape, wrong_index, wrong_argument, refused_by_autograd]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("caught", [True, False], ids=["caught inside", "raised"])
def test_nothing_is_recorded(case, caught, caplog):
    """Neither on record nor in the log, whether the module catches the error or not."""

    def forward(x):
        with contextlib.suppress(Exception) if caught else contextlib.nullcontext():
            case(x)
        return x * 1

    x = torch.ones(2, 3, requires_grad=True)
    caller = Caller(x)
    with record() as log, caplog.at_level(logging.DEBUG, "safemodule"):
        if caught:
            same(forward_of(forward)(x).detach(), x.detach())
        else:
            with pytest.raises((RuntimeError, IndexError, TypeError)):
                forward_of(forward)(x)
    caller.check()
    assert list(log) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: torch._foreach_add_([x, y], [torch.ones(7), torch.ones(7)]),
        lambda x, y: torch.max(x, 0, out=(y, torch.zeros(3))),
        lambda x, y: torch.max(x, 0, out=(y, x)),
    ],
)
def test_a_call_that_would_write_several(call):
    """None of them is on record, and both are what they were."""

    def forward(x, y):
        with pytest.raises(RuntimeError):
            call(x, y)
        return x * 1, y * 1

    x, y = torch.ones(2, 3), torch.zeros(3)
    caller = Caller(x, y)
    with record() as log:
        a, b = forward_of(forward)(x, y)
    caller.check()
    assert list(log) == []
    same(a, x)
    same(b, y)


def test_returned_after_a_failed_write():
    """The values are the input's, and so is the gradient."""

    def forward(x):
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(7))
        return x

    x = torch.ones(2, 3, requires_grad=True)
    out = forward_of(forward)(x)
    same(out.detach(), x.detach())
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_write_after_a_failed_one():
    """Is recorded as usual."""

    def forward(x):
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(7))
        x.mul_(2)
        return x

    x = torch.ones(2, 3)
    with record() as log:
        assert forward_of(forward)(x)[0].tolist() == [2, 2, 2]
    assert [(m.op, m.count) for m in log] == [("mul_", 1)]
    assert x[0].tolist() == [1, 1, 1]


def test_an_error_of_a_container():
    """A key that is not there is no mutation."""

    def forward(batch):
        with pytest.raises(KeyError):
            batch.pop("missing")
        with pytest.raises(KeyError):
            del batch["missing"]
        return batch

    batch = {"x": torch.ones(1)}
    with record() as log:
        assert forward_of(forward)(batch) is batch
    assert list(log) == []
