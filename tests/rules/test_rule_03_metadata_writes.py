"""Rule 3: a view taken after a metadata write is replayed on the geometry of that moment."""

from __future__ import annotations

import pytest
import torch

from safemodule import InputMutationError, mode
from tests.helpers import Caller, compare_with_clones, forward_of


def after_unsqueeze(x):
    """`unsqueeze_`."""
    x.unsqueeze_(0)
    v = x[0, 1]
    x.add_(1)
    return x * 1, v * 1


def after_t(x):
    """`t_`."""
    before = x[0]
    x.t_()
    v = x[0]
    x.add_(1)
    return x * 1, v * 1, before * 1


def after_transpose(x):
    """`transpose_` and `swapaxes_`."""
    x.transpose_(0, 1)
    v = x[1]
    x.swapaxes_(0, 1)
    w = x[1]
    x.mul_(2)
    return x * 1, v * 1, w * 1


def after_squeeze(x):
    """`squeeze_`, with and without a dimension."""
    x.unsqueeze_(0).unsqueeze_(-1)
    x.squeeze_(-1)
    x.squeeze_()
    v = x[2:]
    x.add_(1)
    return x * 1, v * 1


def of_a_view(x):
    """A view changes its own geometry: the input keeps its own."""
    v = x[:2]
    v.t_()
    w = v[0]
    v.add_(1)
    x.mul_(2)
    return x * 1, v * 1, w * 1


def after_a_write(x):
    """The private copy changes its geometry."""
    x.add_(1)
    x.t_()
    v = x[0]
    x.mul_(2)
    return x * 1, v * 1


def between_reads(x):
    """A read saves the old geometry's value."""
    y = x * x
    x.t_()
    z = x * x
    x.add_(1)
    return y, z, x * 1


CASES = [
    after_unsqueeze, after_t, after_transpose, after_squeeze, of_a_view, after_a_write,
    between_reads,
]  # fmt: skip


def inputs(grad=True):
    """One matrix."""
    return (torch.arange(6.0).reshape(3, 2).clone().requires_grad_(grad),)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_if_cloned(case, grad):
    """Values and gradients are those of clones; the caller's shape and strides stay."""
    reference = (
        (lambda x: (x * x, x.t() * x.t(), (x.t() + 1) * 1)) if case is between_reads else None
    )
    compare_with_clones(forward_of(case), case, lambda: inputs(grad), reference=reference)


def test_under_no_grad_it_stays_in_the_graph():
    """The geometry changes, the gradient follows it; on a clone PyTorch loses track of the shape."""
    weight = torch.arange(6.0).reshape(2, 3)

    def forward(x):
        with torch.no_grad():
            x.t_()
        return x * weight

    (x,) = inputs()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        forward(x.clone()).sum().backward()
    forward_of(forward)(x).sum().backward()
    assert torch.equal(x.grad, weight.t())


def test_metadata_write_is_on_record():
    """It changes the caller's tensor in plain PyTorch, so it is a mutation like any other."""
    result = compare_with_clones(forward_of(after_t), after_t, inputs)
    assert [(m.op, m.argument, m.bytes_copied) for m in result.writes] == [
        ("t_", "x", 0),
        ("add_", "x", 24),
    ]


def test_metadata_write_is_refused_in_strict_mode():
    """With nothing changed."""
    (x,) = inputs()
    caller = Caller(x)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(lambda x: x.t_())(x)
    assert caught.value.mutation.op == "t_"
    caller.check()


def test_returned_after_a_metadata_write():
    """The result has the new geometry, and the caller's tensor the old one."""
    x = torch.zeros(2, 3)
    out = forward_of(lambda x: x.t_())(x)
    assert out is not x
    assert out.shape == (3, 2)
    assert x.shape == (2, 3)


def test_requires_grad_is_no_mutation():
    """`requires_grad_` changes the handle alone and is not reported, not even in strict mode."""

    def forward(x):
        x.requires_grad_()
        return torch.autograd.grad((x**2).sum(), x)[0]

    x = torch.tensor([3.0])
    with mode("strict"):
        assert forward_of(forward)(x).tolist() == [6.0]
    assert not x.requires_grad
