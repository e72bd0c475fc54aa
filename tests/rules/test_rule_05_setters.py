"""Rule 5: the setters of `.data`, `.real` and `.imag` write; no other setter does."""

from __future__ import annotations

import pytest
import torch

from safemodule import InputMutationError, mode, record
from tests.helpers import Caller, forward_of


def set_data(x):
    """`.data`."""
    x.data = torch.full_like(x, 7)
    return x * 1


def set_real(x):
    """`.real`."""
    x.real = torch.full_like(x.real, 7)
    return x * 1


def set_imag(x):
    """`.imag`."""
    x.imag = torch.full_like(x.imag, 7)
    return x * 1


WRITING = {"data=": set_data, "real=": set_real, "imag=": set_imag}


@pytest.mark.parametrize("op", WRITING)
def test_setters_that_write(op):
    """The write goes to a copy and is on record."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    caller = Caller(x)
    with record() as log:
        out = forward_of(WRITING[op])(x)
    caller.check()
    expected = x.clone()
    assert torch.equal(out, WRITING[op](expected))
    assert [(m.op, m.argument) for m in log] == [(op, "x")]


@pytest.mark.parametrize("op", WRITING)
def test_setters_that_write_are_refused_in_strict_mode(op):
    """With nothing changed."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    caller = Caller(x)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(WRITING[op])(x)
    assert caught.value.mutation.op == op
    caller.check()


def test_data_of_another_shape():
    """`.data` may change the shape: of the module's tensor alone."""

    def forward(x):
        x.data = torch.ones(5)
        return x * 1

    x = torch.zeros(2)
    assert forward_of(forward)(x).tolist() == [1] * 5
    assert x.tolist() == [0, 0]


def test_data_of_another_input():
    """`x.data = y.data` does not tie x to the memory of y."""

    def forward(x, y):
        x.data = y.data
        x.add_(1)
        return x * 1, y * 1

    x, y = torch.zeros(2), torch.ones(2)
    caller = Caller(x, y)
    a, _ = forward_of(forward)(x, y)
    caller.check()
    assert a.tolist() == [2, 2]


def set_grad(x):
    """`.grad`."""
    x.grad = torch.ones_like(x)
    return x.grad * 1


def set_requires_grad(x):
    """`.requires_grad`."""
    y = x.detach()
    y.requires_grad = True
    return y * 1


def set_attribute(x):
    """An attribute of one's own."""
    x.tag = "t"
    return x * 1


def set_hooks(x):
    """Hooks."""
    x.register_hook(lambda grad: grad)
    return x * 1


def set_retain(x):
    """`retain_grad`."""
    y = x * 1
    y.retain_grad()
    return y


@pytest.mark.parametrize(
    "case", [set_grad, set_requires_grad, set_attribute, set_hooks, set_retain]
)
def test_setters_that_write_nothing(case):
    """They work, in strict mode too, and nothing is on record."""
    x = torch.zeros(2, requires_grad=True)
    with mode("strict"), record() as log:
        forward_of(case)(x)
    assert list(log) == []
    assert x.detach().tolist() == [0, 0]


def test_grad_is_the_callers():
    """`x.grad = ...` on a leaf input is what it is in a plain module: the caller's gradient."""
    x = torch.zeros(2, requires_grad=True)
    forward_of(set_grad)(x)
    assert x.grad.tolist() == [1, 1]
