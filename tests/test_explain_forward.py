"""Writes that PyTorch refuses at once, beyond the programs of `explain_cases`."""

from __future__ import annotations

import pytest
import torch

from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from safemodule._explain_forward import _made_by_function


def test_view_from_before_the_block():
    """Where a view was made is not known then; the line that binds it is named."""
    p = torch.zeros(1, requires_grad=True)
    with torch.no_grad():
        view = torch.ones(2)[:1]  # the view
    with pytest.raises(InplaceError) as info, explain():
        view.mul_(p)
    made, written = explanation_of(info.value).events
    assert made.text == "became a view, without gradients, as view"
    assert made.where.line.endswith("# the view")
    assert written.where.line == "view.mul_(p)"


def test_view_by_a_function_of_an_extension():
    """A Function of C++ has no line in Python: its name is said."""
    made = _made_by_function(torch.ones(1, requires_grad=True).exp(), "became a view")
    assert (made.text, made.where) == ("became a view: exp", None)


def test_item_that_can_be_taken_once():
    """What the source shows is read again; where that fails, the tensor is not known."""

    class Queue:
        def __init__(self, tensor):
            self.items = [tensor]

        def __getitem__(self, _):
            return self.items.pop()

    def shift(queue):
        queue[0].add_(1)

    with pytest.raises(InplaceError) as info, explain():
        shift(Queue(torch.ones(3, requires_grad=True)))
    found = explanation_of(info.value)
    assert (found.name, found.tensor) == ("queue[0]", "unknown")
    assert found.role == f"argument of {shift.__qualname__}"
