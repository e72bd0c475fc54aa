"""Rule 13: where the swap is impossible nothing has changed when the error comes."""

from __future__ import annotations

import pytest
import torch

from safemodule import freeze_inputs, record
from tests.helpers import Caller


@pytest.fixture(params=["handle", "view"])
def held(request):
    """A guarded call whose write cannot be redirected: C++ holds a weak reference."""
    seen = {}

    @freeze_inputs
    def forward(x):
        v = x[:2]
        w = x.view(-1)
        weak = torch._C._WeakTensorRef(x if request.param == "handle" else w)
        with pytest.raises(RuntimeError, match="weak reference") as caught:
            x.add_(1)
        seen["error"] = str(caught.value)
        seen["values"] = [x.tolist(), v.tolist(), w.tolist()]
        seen["together"] = torch._C._is_alias_of(x, v) and torch._C._is_alias_of(x, w)
        seen["shared"] = torch._C._is_alias_of(x, seen["caller"])
        v_alone = v * 1
        del weak
        x.mul_(2)  # now it can
        seen["after"] = [x.tolist(), v.tolist(), w.tolist()]
        return v_alone, x

    return forward, seen


def test_nothing_has_changed(held):
    """Handle and views are what they were, and the caller's tensor is untouched."""
    forward, seen = held
    x = seen["caller"] = torch.ones(3)
    caller = Caller(x)
    with record() as log:
        forward(x)
    caller.check()
    assert (seen["together"], seen["shared"]) == (True, True)
    assert seen["values"] == [[1, 1, 1], [1, 1], [1, 1, 1]]
    assert [m.op for m in log] == ["mul_"]


def test_it_works_again_afterwards(held):
    """Views and handle still belong together."""
    forward, seen = held
    seen["caller"] = torch.ones(3)
    v, x = forward(seen["caller"])
    assert seen["after"] == [[2, 2, 2], [2, 2], [2, 2, 2]]
    assert v.tolist() == [1, 1]
    assert x.tolist() == [2, 2, 2]


def test_the_error_says_what_to_do(held):
    """In plain words."""
    forward, seen = held
    seen["caller"] = torch.ones(3)
    forward(seen["caller"])
    assert "nothing was written" in seen["error"]
    assert "clone" in seen["error"]


def test_leaf_that_cannot_be_moved():
    """An input that became a leaf keeps its memory, its views and its value."""

    @freeze_inputs
    def forward(x):
        x.requires_grad_()
        row = x[0]
        weak = torch._C._WeakTensorRef(row)
        with torch.no_grad():
            with pytest.raises(RuntimeError, match="weak reference"):
                x.add_(1)
            assert x.tolist() == [[0, 0], [0, 0]]
            assert torch._C._is_alias_of(x, row)
            del weak
            x.add_(1)
        return x.detach(), row.detach()

    x = torch.zeros(2, 2)
    caller = Caller(x)
    whole, row = forward(x)
    caller.check()
    assert (whole.tolist(), row.tolist()) == ([[1, 1], [1, 1]], [1, 1])
