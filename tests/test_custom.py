"""Custom autograd Functions that write their own input."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from safemodule import freeze_inputs, record
from tests.helpers import Caller, compare_with_clones, forward_of


class MarkFirst(Function):
    """Marks, then writes."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class MarkLast(Function):
    """Writes, then marks."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Setup(Function):
    """The newer style."""

    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Two(Function):
    """Writes one of two inputs and saves the other."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x.mul_(y)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y, None


class SavesDirty(Function):
    """Saves its written input: `exp_`."""

    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class Unmarked(Function):
    """Writes a detached alias without a word: a fault of its own that plain PyTorch lets pass."""

    @staticmethod
    def forward(ctx, x):
        x.detach().mul_(2)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


SINGLE = [MarkFirst, MarkLast, Setup, SavesDirty]


def inputs():
    """A tensor in the middle of a graph, which may be written."""
    return (torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True),)


@pytest.mark.parametrize("function", SINGLE, ids=lambda f: f.__name__)
def test_first_write_in_a_function(function):
    """The redirect happens in the middle of `apply`: value and gradient as on a clone."""

    def forward(x):
        return function.apply(x) * 3

    result = compare_with_clones(forward_of(forward), forward, inputs)
    assert [m.argument for m in result.writes] == ["x"]


@pytest.mark.parametrize("function", SINGLE, ids=lambda f: f.__name__)
def test_write_of_a_private_copy_in_a_function(function):
    """The copy is the module's own: a dirty input like any other."""

    def forward(x):
        x.add_(1)
        return function.apply(x) * 3

    compare_with_clones(forward_of(forward), forward, inputs)


@pytest.mark.parametrize("function", SINGLE, ids=lambda f: f.__name__)
def test_input_afterwards(function):
    """Whoever uses the input after the Function has written it sees the written value."""

    def forward(x):
        y = function.apply(x)
        return y * 1, x.detach() * 1

    compare_with_clones(forward_of(forward), forward, inputs)


@pytest.mark.parametrize("function", [*SINGLE, Unmarked], ids=lambda f: f.__name__)
def test_without_gradients(function):
    """No gradient flows: the write is a write."""
    x = torch.ones(3)
    caller = Caller(x)
    with record() as log:
        out = freeze_inputs(lambda x: function.apply(x))(x)
    caller.check()
    assert out.tolist() == function.apply(torch.ones(3)).tolist()
    assert [m.argument for m in log] == ["x"]


def on_a_view(x):
    """The Function is given a view of an input that nobody has written yet."""
    return MarkFirst.apply(x[:2]) * 3


def under_no_grad(x):
    """The Function is the first to write, where no gradient is recorded."""
    with torch.no_grad():
        return MarkFirst.apply(x) * 3


REFUSES = hasattr(Function.apply, "__code__")


@pytest.mark.skipif(REFUSES, reason="before torch 2.15 the Function must be told, and cannot be")
@pytest.mark.parametrize("forward", [on_a_view, under_no_grad])
def test_nothing_is_refused_where_apply_is_cpp(forward):
    """As on clones, what was saved before and what comes after included."""

    def whole(x):
        saved = x.exp()
        out = forward(x)
        return saved[: len(out)] * out, x * 2

    compare_with_clones(forward_of(whole), whole, inputs)


@pytest.mark.skipif(not REFUSES, reason="torch 2.15 and later need not be told of the copy")
@pytest.mark.parametrize("forward", [on_a_view, under_no_grad])
def test_refusals_say_what_to_do(forward):
    """Where PyTorch cannot be told of the copy: a clear error, and the caller is untouched."""
    (x,) = inputs()
    caller = Caller(x)
    with pytest.raises(RuntimeError, match="is the first to write a guarded input") as caught:
        forward_of(forward)(x)
    caller.check()
    text = str(caught.value)
    assert text.index("return a new tensor") < text.index("x = x.clone()")


@pytest.mark.parametrize("forward", [on_a_view, under_no_grad])
def test_what_is_refused_works_once_the_input_is_private(forward):
    """Written before, the input is the module's own, and the same call is right."""

    def after_a_write(x):
        x.add_(1)
        return forward(x)

    (x,) = inputs()
    caller = Caller(x)
    out = forward_of(after_a_write)(x)
    caller.check()
    assert out.tolist() == after_a_write(x.detach().clone()).tolist()


def test_two_inputs():
    """Only the written one is redirected."""

    def forward(x, y):
        return Two.apply(x, y) * 3

    def pair():
        return (*inputs(), torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))

    result = compare_with_clones(forward_of(forward), forward, pair)
    assert [m.argument for m in result.writes] == ["x"]


def test_the_class_is_left_as_it_was():
    """A later use of the same Function outside of a guarded call marks as ever."""
    freeze_inputs(lambda x: Setup.apply(x))(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True) * 1
    y = Setup.apply(x)
    assert y is x
    assert y.tolist() == [2, 2]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1, 1]


def test_a_function_inside_a_function():
    """Nested applies."""

    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                ctx.y, ctx.z = y, MarkFirst.apply(y * 1)
            return ctx.z.detach()

        @staticmethod
        def backward(ctx, grad):
            (g,) = torch.autograd.grad(ctx.z, ctx.y, grad)
            return g

    def forward(x):
        return Outer.apply(x) * 3

    compare_with_clones(forward_of(forward), forward, inputs)


def test_once_differentiable_and_needs_input_grad():
    """The context tells the truth."""
    seen = []

    class Asks(Function):
        @staticmethod
        def forward(ctx, x, y):
            seen.append(ctx.needs_input_grad)
            return x * y

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad, None

    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    freeze_inputs(lambda x, y: Asks.apply(x, y))(x, y).sum().backward()
    assert seen == [(True, False)]
    assert x.grad.tolist() == [1]


def test_materialised_grads_and_non_tensor_outputs():
    """Functions with several outputs, some of them no tensors."""

    class Many(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, 5, x.detach() > 0

        @staticmethod
        def backward(ctx, grad, *rest):
            return None if grad is None else grad * 2

    def forward(x):
        a, n, mask = Many.apply(x)
        x.mul_(2)
        return a, n, mask, x * 1

    def reference(x):
        return x * 2, 5, x > 0, x * 2

    compare_with_clones(forward_of(forward), forward, inputs, reference=reference)
