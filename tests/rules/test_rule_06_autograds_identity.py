"""Rule 6: to autograd the handle is one ordinary tensor: reversal and hooks see what they should."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import Function

from safemodule import freeze_inputs
from tests.helpers import Caller, compare_with_clones, forward_of, same


def reversal(how):
    """Return a gradient reversal whose forward returns its input in a certain way."""

    class Reverse(Function):
        @staticmethod
        def forward(ctx, x):
            return how(x)

        @staticmethod
        def backward(ctx, grad):
            return -2 * grad

    return Reverse.apply


class Setup(Function):
    """Reversal in the style of `setup_context`, which detaches the input."""

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].detach())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -2 * grad * torch.ones_like(x)


class Tuple(Function):
    """Reversal of two tensors, returned as a tuple."""

    @staticmethod
    def forward(ctx, x, y):
        return x, y

    @staticmethod
    def backward(ctx, gx, gy):
        return -2 * gx, -2 * gy


VARIANTS = {
    "return x": reversal(lambda x: x),
    "view_as": reversal(lambda x: x.view_as(x)),
    "view": reversal(lambda x: x.view(x.shape)),
    "detach": reversal(lambda x: x.detach()),
    "clone": reversal(lambda x: x.clone()),
    "expand_as": reversal(lambda x: x.expand_as(x)),
    "alias of an alias": reversal(lambda x: x.view_as(x).view_as(x)),
    "setup_context": Setup.apply,
    "tuple": lambda x: Tuple.apply(x, x * 1)[0],
    "tuple, second": lambda x: Tuple.apply(x * 1, x)[1],
}
variants = pytest.mark.parametrize("reverse", VARIANTS.values(), ids=VARIANTS.keys())
kinds = pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "non-leaf"])


def make(leaf):
    """Return an input: a leaf, or in the middle of a graph with its leaf."""
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    return w, (w if leaf else w * 3)


@variants
@kinds
def test_gradient_is_reversed(reverse, leaf):
    """Without a write."""
    w, x = make(leaf)
    (grad,) = torch.autograd.grad(forward_of(lambda x: reverse(x) * 5)(x).sum(), w)
    assert grad.tolist() == [-10.0 * (1 if leaf else 3)] * 3


@variants
@kinds
def test_gradient_is_reversed_after_a_write(reverse, leaf):
    """The written copy goes through the Function."""

    def forward(x):
        x.mul_(2)
        return reverse(x) * 5

    w, x = make(leaf)
    caller = Caller(x)
    out = forward_of(forward)(x)
    caller.check()
    (grad,) = torch.autograd.grad(out.sum(), w)
    assert grad.tolist() == [-20.0 * (1 if leaf else 3)] * 3


@variants
@kinds
def test_reversed_then_read_then_written(reverse, leaf):
    """The reversed tensor is used before the input is written: its gradient stays right."""

    def forward(x):
        y = reverse(x) * x
        x.mul_(2)
        return y, x * 1

    w, x = make(leaf)
    caller = Caller(x)
    y, z = forward_of(forward)(x)
    caller.check()
    k = 1 if leaf else 3
    (grad,) = torch.autograd.grad(y.sum() + z.sum(), w)
    value = x.detach()
    same(grad, k * (-2 * value + value + 2), exact=False)


@variants
def test_in_nested_guarded_calls(reverse):
    """The handle of a handle is an ordinary tensor as well."""
    inner = freeze_inputs(lambda x: reverse(x) * 5)
    outer = freeze_inputs(lambda x: inner(x) + x)
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(outer(w).sum(), w)
    assert grad.tolist() == [-9.0] * 3


def test_a_write_behind_a_reversal_is_refused_as_for_clones():
    """PyTorch refuses to read an output of a custom Function that was a view of what is written."""
    reverse = VARIANTS["return x"]

    def forward(x):
        y = reverse(x)
        x.mul_(2)
        return y * 3

    x = torch.ones(3, requires_grad=True)
    caller = Caller(x)
    with pytest.raises(RuntimeError, match="is a view and its base"):
        forward(x.clone())
    with pytest.raises(RuntimeError, match="modified in"):
        forward_of(forward)(x)
    caller.check()


class Hooked(nn.Module):
    """An inner module with full backward hooks before and after."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.seen = []
        module.register_full_backward_hook(self.after)
        module.register_full_backward_pre_hook(self.before)

    def after(self, module, grad_input, grad_output):
        self.seen.append(("after", grad_input[0].clone(), grad_output[0].clone()))
        return (grad_input[0] * 2,)

    def before(self, module, grad_output):
        self.seen.append(("before", grad_output[0].clone()))
        return (grad_output[0] * 3,)

    def forward(self, x):
        return self.module(x)


MODULES = {"tanh": nn.Tanh, "identity": nn.Identity, "relu": nn.ReLU, "flatten": nn.Flatten}


@pytest.mark.parametrize("write", ["none", "before", "after"])
@pytest.mark.parametrize("name", MODULES)
@kinds
def test_full_backward_hooks_on_inner_modules(name, write, leaf):
    """The hooks see the same gradients as in a plain module, and their changes count."""

    def run(hooked, x, wrap):
        def forward(x):
            if write == "before":
                x.mul_(2)
            y = hooked(x) * 5
            if write == "after":
                x.mul_(2)
            return y, x * 1

        return wrap(forward)(x)

    def out_of_place(hooked, x):
        if write == "before":
            x = x * 2
        y = hooked(x) * 5
        if write == "after":
            x = x * 2
        return y, x * 1

    w = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    grads, seen = [], []
    for wrap in (freeze_inputs, None):
        hooked = Hooked(MODULES[name]())
        x = w if leaf else w * 1
        y, z = run(hooked, x, wrap) if wrap else out_of_place(hooked, x * 1)
        grads.append(torch.autograd.grad(y.sum() + z.sum(), w)[0])
        seen.append(hooked.seen)
    same(*grads)
    assert [event[0] for event in seen[0]] == [event[0] for event in seen[1]]
    for mine, theirs in zip(*seen, strict=True):
        for a, b in zip(mine[1:], theirs[1:], strict=True):
            same(a, b)


def test_tensor_hooks_and_retain_grad():
    """`register_hook` and `retain_grad` on the input work on the module's own tensor."""
    seen = []

    def forward(x):
        x.retain_grad()
        x.register_hook(seen.append)
        y = (x * 3).sum()
        y.backward(retain_graph=True)
        seen.append(x.grad * 1)
        return y

    x = torch.ones(2, requires_grad=True) * 1
    forward_of(forward)(x)
    assert [s.tolist() for s in seen] == [[3, 3], [3, 3]]


class Remember(Function):
    """Saves its input, and looks at it in backward."""

    seen: list = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        Remember.seen.append(x)
        y = x * 2  # an operation on what C++ made
        y.add_(1)
        assert x[0].shape == x.shape[1:]
        repr(x)
        return grad * x * 2


def test_unpacked_saved_tensors_are_fresh_handles():
    """A tensor that C++ hands out without our attributes is no error."""
    Remember.seen.clear()

    def forward(x):
        y = Remember.apply(x)
        x.mul_(2)
        return y, x * 1

    def reference(x):
        return x * x, x * 2

    def inputs():
        return (torch.arange(1.0, 4.0, dtype=torch.float64).requires_grad_(),)

    compare_with_clones(forward_of(forward), forward, inputs, reference=reference)
    assert Remember.seen


def test_a_backward_that_writes_what_it_saved():
    """A write to an unpacked tensor never reaches the caller."""

    class Careless(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            x.mul_(0)
            return grad * 2

    x = torch.ones(3, requires_grad=True)
    was = x.detach().clone()
    forward_of(lambda x: Careless.apply(x) * 1)(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    same(x.detach(), was)
