"""Rule 18: where "as if cloned" and "as a plain module" disagree, the plain module wins."""

from __future__ import annotations

import torch

from tests.helpers import forward_of


def test_strides_until_the_first_write():
    """A clone of an expanded tensor is dense; the handle has the caller's strides until written."""
    x = torch.arange(3.0).expand(2, 3)

    def forward(x):
        before = x.stride()
        x.add_(1)
        return before, x.stride()

    assert forward_of(forward)(x) == ((0, 1), (3, 1))
    assert x.clone().stride() == (3, 1)


def test_a_returned_view_of_an_unwritten_input_is_the_callers_memory():
    """A clone's view would be separate memory; a plain module's is not."""
    x = torch.zeros(2, 2)
    out = forward_of(lambda x: x[0])(x)
    out.add_(1)
    assert x.tolist() == [[1, 1], [0, 0]]
    assert out.data_ptr() == x.data_ptr()


def test_a_returned_view_of_a_written_input_is_not():
    """Once written, the module's values are its own."""

    def forward(x):
        x.add_(1)
        return x[0]

    x = torch.zeros(2, 2)
    out = forward_of(forward)(x)
    out.add_(1)
    assert x.tolist() == [[0, 0], [0, 0]]
    assert out.tolist() == [2, 2]


def test_an_unwritten_input_is_returned_as_the_same_object():
    """A clone would be another tensor."""
    x = torch.zeros(2)
    assert forward_of(lambda x: x)(x) is x
    assert forward_of(lambda x: F_dropout(x))(x) is x


def F_dropout(x):
    """Dropout in evaluation returns its input."""
    return torch.nn.functional.dropout(x, 0.5, training=False)


def test_gradient_of_a_leaf_input_is_the_callers():
    """`x.grad` inside forward reads the caller's; a clone's would be None."""
    x = torch.ones(2, requires_grad=True)
    x.grad = torch.full((2,), 5.0)
    assert forward_of(lambda x: x.grad)(x) is x.grad


def test_is_leaf_is_the_callers():
    """A clone of a leaf is none; the handle says what a plain module would see."""
    x = torch.ones(2, requires_grad=True)
    assert forward_of(lambda x: x.is_leaf)(x) is True
    assert forward_of(lambda x: x.is_leaf)(x * 1) is False


def test_backward_inside_forward_reaches_the_callers_leaf():
    """A plain module that calls backward fills `x.grad` of its caller: so does a guarded one."""

    def forward(x):
        (x * 3).sum().backward()

    x = torch.ones(2, requires_grad=True)
    forward_of(forward)(x)
    assert x.grad.tolist() == [3, 3]
