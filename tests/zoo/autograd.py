"""Autograd's own edges: saved values, custom Functions, hooks, leaves."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from tests.zoo.base import Edge, ramp


class ReadWriteRead(Edge):
    """C4 in three lines: what the first read saved stays what it was."""

    writes = [("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = x.exp() * x
        x.mul_(2)
        return y, x.exp() * x

    def reference(self, x):
        return x.exp() * x, (x * 2).exp() * (x * 2)


class SavedResult(Edge):
    """An in-place op that saves its own result, which is then overwritten."""

    writes = [("exp_", "x"), ("add_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.exp_()
        x.add_(1)
        return x * 1

    def reference(self, x):
        return (x.exp() + 1) * 1


class ReadsWhatItWrites(Edge):
    """One operation writes an input and saves the same input: `x.mul_(x)`."""

    writes = [("mul_", "x"), ("addcmul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        x.mul_(x)
        x.addcmul_(x, x)
        return x * 1

    def reference(self, x):
        x = x * x
        return x + x * x


class SavedThroughAView(Edge):
    """Autograd saves a view, which Python has dropped, of the written copy."""

    writes = [("add_", "x"), ("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return ramp(3), ramp(1)

    def forward(self, x, w):
        x.add_(1)
        y = x[:1] * w
        x.mul_(2)
        return y, x * 1

    def reference(self, x, w):
        return (x[:1] + 1) * w, (x + 1) * 2


class MaskInALoop(Edge):
    """A mask is read and written ten times."""

    writes = [("scatter_", "mask")]
    refused = True

    @staticmethod
    def inputs():
        return ramp(2, 12), torch.zeros(2, 12, dtype=torch.bool)

    def forward(self, logits, mask):
        total = 0.0
        for step in range(10):
            p = logits.masked_fill(mask, -1e9).log_softmax(-1)
            choice = p.argmax(-1, keepdim=True)
            mask.scatter_(1, choice, True)
            total = total + p.gather(1, choice).sum() * (step + 1)
        return total, mask * 1

    def reference(self, logits, mask):
        total = 0.0
        for step in range(10):
            p = logits.masked_fill(mask, -1e9).log_softmax(-1)
            choice = p.argmax(-1, keepdim=True)
            mask = mask.scatter(1, choice, True)
            total = total + p.gather(1, choice).sum() * (step + 1)
        return total, mask * 1


class Recurrence(Edge):
    """Each row is computed from the one before: `x[i] = f(x[i - 1])`."""

    writes = [("__setitem__", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(6, 2),)

    def forward(self, x):
        for i in range(1, len(x)):
            x[i] = torch.tanh(x[i - 1]) * x[i]
        return x * 1

    def reference(self, x):
        rows = [x[0]]
        for i in range(1, len(x)):
            rows.append(torch.tanh(rows[-1]) * x[i])
        return torch.stack(rows)


class FunctionBeforeAWrite(Edge):
    """A custom Function saves the input, which is then written."""

    writes = [("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = Square.apply(x)
        x.mul_(2)
        return y, x * 1

    def reference(self, x):
        return x * x, x * 2


class FunctionAfterAWrite(Edge):
    """A custom Function is given the private copy."""

    writes = [("mul_", "x"), ("add_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.mul_(2)
        y = Square.apply(x)
        x.add_(1)
        return y, x * 1

    def reference(self, x):
        return (x * 2) ** 2, x * 2 + 1


class Square(Function):
    """x * x, saving its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


class FunctionThatWritesItsInput(Edge):
    """`mark_dirty`: the Function writes the tensor it is given."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = DoubleInPlace.apply(x)
        return y * 1


class DoubleInPlace(Function):
    """2 * x in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class ReversalReturnsInput(Edge):
    """Gradient reversal: `return x` in forward, minus the gradient in backward."""

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return Reverse.apply(x) * 3


class WriteThenReversal(Edge):
    """The written copy is reversed, and so is the gradient."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3) * 1,)

    def forward(self, x):
        x.mul_(2)
        y = Reverse.apply(x)
        return y * 3, x * 1


class Reverse(Function):
    """Identity with a reversed gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


class ReversalReturnsView(Edge):
    """Gradient reversal: `return x.view_as(x)`."""

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return ReverseView.apply(x) * 3


class ReverseView(Function):
    """Identity by a view, with a reversed gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class ReversalOfATuple(Edge):
    """Gradient reversal of several tensors at once."""

    @staticmethod
    def inputs():
        return ramp(3), ramp(2)

    def forward(self, x, y):
        a, b = ReverseTuple.apply(x, y)
        return a * 3, b * 2


class ReverseTuple(Function):
    """Identity of two tensors, one gradient reversed."""

    @staticmethod
    def forward(ctx, x, y):
        return x, y.view_as(y)

    @staticmethod
    def backward(ctx, gx, gy):
        return -gx, gy * 5


class ReversalWithSetupContext(Edge):
    """The newer style of custom Functions, with `detach` in `setup_context`."""

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return ReverseSetup.apply(x, 0.5) * 3


class ReverseSetup(Function):
    """Identity with a scaled reversed gradient."""

    @staticmethod
    def forward(x, scale):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x.detach())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad * ctx.scale * x, None


class HookOnInnerModule(Edge):
    """A full backward hook on an inner module wraps its inputs in a custom Function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Tanh()
        self.inner.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return self.inner(x) * 3


class HookThenWrite(Edge):
    """The input is written after the hooked module has used it."""

    writes = [("mul_", "x")]
    refused = True

    def __init__(self):
        super().__init__()
        self.inner = nn.Tanh()
        self.inner.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        self.inner.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))

    @staticmethod
    def inputs():
        return (ramp(3) * 1,)

    def forward(self, x):
        y = self.inner(x)
        x.mul_(2)
        return y, x * 1

    def reference(self, x):
        return self.inner(x), x * 2


class WriteThenHook(Edge):
    """The private copy goes through a hooked module."""

    writes = [("mul_", "x")]

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, dtype=torch.float64)
        nn.init.eye_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        self.inner.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))

    @staticmethod
    def inputs():
        return (ramp(2, 3),)

    def forward(self, x):
        x.mul_(2)
        return self.inner(x)


class TensorHooks(Edge):
    """`register_hook` on an input and on a view of it."""

    needs_grad = True

    @staticmethod
    def inputs():
        return (ramp(3) * 1,)

    def forward(self, x):
        x.register_hook(lambda grad: grad * 2)
        v = x[:2]
        v.register_hook(lambda grad: grad * 3)
        return x * 1, v * 1


class GradInside(Edge):
    """`torch.autograd.grad` with respect to an input, inside forward."""

    needs_grad = True
    writes = [("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        x.mul_(2)
        return g * x

    def reference(self, x):
        return 3 * x**2 * (x * 2)


class GradInsideAfterAWrite(Edge):
    """`torch.autograd.grad` with respect to the written input."""

    needs_grad = True
    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.mul_(2)
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g * 1


class RequiresGradInside(Edge):
    """The module makes its input a leaf and differentiates with respect to it."""

    needs_grad = True

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        x.requires_grad_()
        energy = (x**3).sum()
        (force,) = torch.autograd.grad(energy, x)
        return force


class DetachedLeafInside(Edge):
    """`x.detach().requires_grad_()` begins a life of its own."""

    needs_grad = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        leaf = x.detach().requires_grad_()
        (leaf**2).sum().backward()
        return leaf.grad * x


class RetainGrad(Edge):
    """`retain_grad` on an input that has been written."""

    needs_grad = True
    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3) * 1,)

    def forward(self, x):
        x.mul_(2)
        x.retain_grad()
        (x**2).sum().backward(retain_graph=True)
        return x.grad * 1


class Checkpointed(Edge):
    """A checkpointed part is computed again in backward, with the values of the first pass."""

    writes = [("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = checkpoint(lambda t: t.exp() * t, x, use_reentrant=False)
        x.mul_(2)
        return y, x * 1

    def reference(self, x):
        return x.exp() * x, x * 2


class CheckpointThatWrites(Edge):
    """A checkpointed part writes the input: once, not again when it is recomputed."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    refused = True

    def forward(self, x):
        y = checkpoint(self.part, x, use_reentrant=False)
        return y, x * 1

    @staticmethod
    def part(t):
        t.mul_(2)
        return t.exp() * t

    def reference(self, x):
        x = x * 2
        return x.exp() * x, x * 1


class DoubleBackward(Edge):
    """A second derivative through a write."""

    needs_grad = True
    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.mul_(2)
        y = (x**4).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        return h


class OptimiserOnADetachedCopy(Edge):
    """An optimiser inside forward works on a leaf made of the input."""

    needs_grad = True

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        z = x.detach().clone().requires_grad_()
        optimiser = torch.optim.SGD([z], lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            (z**2).sum().backward()
            optimiser.step()
        return z.detach() * x
