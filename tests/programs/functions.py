"""Functions that programs call: custom autograd functions, and a checkpoint."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * y).sum_to_size(x.shape), (grad * x).sum_to_size(y.shape)


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def product(x, y):
    """Return `x * y`; both are saved."""
    return _Product.apply(x, y)


def reverse(x):
    """Return `x` with the gradient reversed, in memory of its own."""
    return _Reverse.apply(x) * 1


def double_(x):
    """Double `x` in place, in a custom function."""
    return _Double.apply(x)


def checkpointed(func, x):
    """Return `func(x)`, computed again in the backward pass."""
    return checkpoint(func, x, use_reentrant=False)


def slope(func, x):
    """Return the derivative of `func` at `x`, which can be differentiated again."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x * 0
    return torch.autograd.grad(func(x), x, create_graph=True)[0]


ALL = {
    "product": product, "reverse": reverse, "double_": double_, "checkpointed": checkpointed,
    "slope": slope,
}  # fmt: skip
