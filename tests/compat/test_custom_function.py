"""Custom `autograd.Function`s: every way to write one, given a handle."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from safemodule import freeze_inputs
from tests.helpers import Caller, compare_with_clones, same


def one():
    """Return an input."""
    return (torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_(),)


class Square(Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class SquareSetup(Function):
    """The same in the newer style, with forward-mode AD and a rule for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent


class SquareVmap(SquareSetup):
    """The same with a vmap rule written out."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return SquareVmap.apply(x), in_dims[0]


class Exponential(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class KeepsOnContext(Function):
    """Keeps its input as an attribute, not by `save_for_backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = x.detach().clone()
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.factor * grad


class SeveralResults(Function):
    """Two results, one not differentiable, and an argument that is no tensor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        indices = x.argsort()
        ctx.mark_non_differentiable(indices)
        return x * factor, indices

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.factor, None


class Reversal(Function):
    """Gradient reversal: returns its input."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Custom:
    """What stands for each Function: how it is applied, and what it computes."""

    functions = {
        "saves its input": (Square.apply, lambda x: x * x),
        "setup_context": (SquareSetup.apply, lambda x: x * x),
        "a vmap rule": (SquareVmap.apply, lambda x: x * x),
        "saves its result": (Exponential.apply, lambda x: x.exp()),
        "keeps on the context": (KeepsOnContext.apply, lambda x: x * x),
        "several results": (lambda x: SeveralResults.apply(x, 3.0)[0], lambda x: x * 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", Custom.functions)
def test_before_and_after_a_write(name):
    """A Function reads the handle, the module writes it, another call reads it again."""
    custom, plain = Custom.functions[name]

    def forward(function):
        def run(x):
            y = function(x)
            x.add_(1)
            z = function(x)
            x[0] = 2.0
            return y + z + function(x)

        return run

    def reference(x):
        second = x + 1
        third = torch.cat([torch.full_like(second[:1], 2.0), second[1:]])
        return plain(x) + plain(second) + plain(third)

    compare_with_clones(freeze_inputs(forward(custom)), reference, one, exact=False)


@pytest.mark.parametrize("name", ["saves its input", "setup_context", "a vmap rule"])
def test_double_backward(name):
    """The gradient of the gradient through a Function whose saved input was written later."""
    custom, plain = Custom.functions[name]

    @freeze_inputs
    def guarded(x):
        y = custom(x)
        x.mul_(2)
        return (y * custom(x)).sum()

    def second_order(function):
        x = one()[0]
        (grad,) = torch.autograd.grad(function(x), x, create_graph=True)
        (out,) = torch.autograd.grad(grad.square().sum(), x)
        return out

    expected = second_order(lambda x: (plain(x) * plain(x * 2)).sum())
    same(second_order(guarded), expected, exact=False)


@pytest.mark.parametrize("name", ["setup_context", "a vmap rule"])
def test_vmap_of_a_function_inside(name):
    """`vmap` over a Function, of a handle that is written afterwards."""
    custom, plain = Custom.functions[name]

    def forward(function):
        def run(x):
            y = torch.vmap(function)(x)
            x.add_(1)
            return y + torch.vmap(function)(x)

        return run

    compare_with_clones(
        freeze_inputs(forward(custom)),
        lambda x: plain(x) + plain(x + 1),
        one,
        strides=False,
        exact=False,
    )


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_forward_mode_of_a_function_inside():
    """The `jvp` of a Function, of a handle with a tangent."""
    from torch.autograd import forward_ad as fwAD

    @freeze_inputs
    def forward(x):
        y = SquareSetup.apply(x)
        x.mul_(2)
        return y * x

    x = one()[0].detach()
    tangent = torch.linspace(1, 2, 6, dtype=x.dtype).reshape(2, 3)
    with fwAD.dual_level():
        out = fwAD.unpack_dual(forward(fwAD.make_dual(x, tangent)))
        same(out.tangent, 6 * x * x * tangent, exact=False)


# -- Functions that write their input --------------------------------------------------------------


class MarksDirty(Function):
    """Writes its input and says so."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class MarksDirtySetup(Function):
    """The same in the newer style."""

    @staticmethod
    def forward(x):
        x.mul_(2)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class WritesInSecret(Function):
    """Writes its input without a word, and returns something else."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("function", [MarksDirty, MarksDirtySetup])
def test_mark_dirty(function):
    """The written input is a copy; before and after it, values that autograd saved stay."""

    def forward(x):
        y = (x * x).sum()
        z = function.apply(x)
        return y + (z * z).sum()

    def reference(x):
        return (x * x).sum() + (2 * x * 2 * x).sum()

    compare_with_clones(freeze_inputs(forward), reference, one, exact=False)


def test_a_function_that_writes_in_secret():
    """The write goes to a copy as any other."""

    def forward(x):
        y = (x * x).sum()
        z = WritesInSecret.apply(x)
        return y + z.sum()

    def reference(x):
        return (x * x).sum() + (x * 2 + 1).sum()

    x = one()[0]
    caller = Caller(x)
    out = freeze_inputs(forward)(x)
    same(out.detach(), reference(x).detach())
    out.backward()
    grad, x.grad = x.grad, None
    caller.check()
    same(grad, 2 * x.detach() + 2, exact=False)


def test_gradient_reversal():
    """A Function that returns a view of its input keeps its own gradient."""

    def forward(x):
        y = Reversal.apply(x)
        return (y * y).sum() + (x * x).sum()

    x = one()[0]
    caller = Caller(x)
    freeze_inputs(forward)(x).backward()
    grad, x.grad = x.grad, None
    caller.check()
    same(grad, torch.zeros_like(grad))


def test_a_write_behind_a_reversed_view_is_refused_as_in_pytorch():
    """Autograd forbids a write to the base of a custom Function's view, of a clone as well."""

    def forward(x):
        y = Reversal.apply(x)
        x.add_(1)
        return y.sum()

    for function in (freeze_inputs(forward), lambda x: forward(x.clone())):
        with pytest.raises(RuntimeError, match="view"):
            function(one()[0]).backward()


def test_without_gradients():
    """Under no_grad a Function's forward is all there is."""
    with torch.no_grad():
        compare_with_clones(
            freeze_inputs(lambda x: MarksDirty.apply(x) + Square.apply(x)),
            lambda x: 2 * x + 4 * x * x,
            lambda: (one()[0].detach(),),
            backward=False,
            exact=False,
        )
