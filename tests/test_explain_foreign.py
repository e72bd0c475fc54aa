"""PyTorch's own error, about values saved where our hooks were not, is explained when it leaves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of

HINT = "Hint: enable anomaly detection"


def explained(before, inside):
    """Run one part before a block and one inside, and return error and explanation."""
    state = before()
    with pytest.raises(InplaceError) as info, explain():
        inside(*state)
    return str(info.value), explanation_of(info.value)


def test_graph_from_before():
    """The graph was made before the block began; the write is inside."""

    def before():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        return y, (y * 2).sin().sum()

    def inside(y, loss):
        y.detach().add_(1)  # written here
        loss.backward()

    text, found = explained(before, inside)
    assert HINT in text
    assert "is at version 1; expected version 0" in text
    saved, written = found.events
    assert saved.where is None
    assert "by exp, as its result" in saved.text
    assert written.where.line.endswith("# written here")
    assert found.tensor == "float32[3] cpu"


def test_graph_and_write_from_before():
    """Both were before the block: the op is known, the lines are not."""

    def before():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.detach().add_(1)
        return (y.sum(),)

    text, found = explained(before, lambda loss: loss.backward())
    assert "by exp, as its result" in found.events[0].text
    assert "where no operation was seen" in found.events[1].text
    assert HINT in text


def test_among_many_alike():
    """Among values of the same type and shape the right one is found."""

    def before():
        x = torch.ones(3, requires_grad=True)
        ys = [x.exp() for _ in range(20)]
        return ys, sum((y * n).sin().sum() for n, y in enumerate(ys))

    def inside(ys, loss):
        ys[3].detach().mul_(2)  # the right one
        ys[3].detach().mul_(2)
        torch.zeros(3).add_(1)
        loss.backward()

    _, found = explained(before, inside)
    assert [e.where.line[:5] for e in found.events[1:]] == ["ys[3]", "ys[3]"]


def test_list_of_saved_values():
    """A node may save a list."""

    def before():
        x = torch.ones(3, requires_grad=True)
        index = torch.tensor([0, 1])
        other = torch.tensor([0, 0])
        y = x.expand(3, 3)[index, other]
        return index, y

    def inside(index, y):
        index.add_(1)  # written here
        y.sum().backward()

    _, found = explained(before, inside)
    assert "by index, as its argument indices" in found.events[0].text
    assert found.events[1].where.line.endswith("# written here")
    assert found.tensor == "int64[2] cpu"


def test_custom_function():
    """A custom Function saved it before the block."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    def before():
        y = Exp.apply(torch.ones(3, requires_grad=True))
        return (y,)

    def inside(y):
        y.mul_(2)  # written here
        y.sum().backward()

    _, found = explained(before, inside)
    assert "by Exp, a custom Function, as y" in found.events[0].text
    assert found.events[1].where.line.endswith("# written here")


def test_several_values_of_a_custom_function():
    """Among what one Function saved, None included, the value that was written is found."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(None, x, y)
            return x * y

        @staticmethod
        def backward(ctx, grad):
            _, x, y = ctx.saved_tensors
            return grad * y, grad * x

    def before():
        x, y = torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True).exp()
        return y, Product.apply(x, y)

    def inside(y, out):
        y.mul_(2)  # written here
        out.sum().backward()

    _, found = explained(before, inside)
    assert "by Product, a custom Function, as y" in found.events[0].text
    assert found.events[1].where.line.endswith("# written here")


def test_error_that_only_looks_like_it():
    """Hooks of the user's may raise the same words, or others: the error stays what it is."""
    words = (
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.FloatTensor [3]], which is output 0 of ExpBackward0, is at version 1; "
        "expected version 0 instead."
    )

    def saved_with(error):
        def unpack(_):
            raise error

        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return torch.ones(3, requires_grad=True).exp()

    other, same = saved_with(KeyError("another")), saved_with(RuntimeError(words))
    with pytest.raises(RuntimeError) as info, explain():
        (same + other).sum().backward()
    assert type(info.value) is RuntimeError
    assert str(info.value) == words


def test_autograd_grad():
    """`torch.autograd.grad` is explained as `backward` is."""

    def before():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        return x, y

    def inside(x, y):
        y.detach().zero_()
        torch.autograd.grad(y.sum(), x)

    _, found = explained(before, inside)
    assert found.events[1].text.startswith("written by zero_")


def test_still_forbidden():
    """Looking for the value does not unlock it: a second backward fails as well."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.detach().zero_()
    loss = y.sum()
    for _ in range(2):
        with pytest.raises(InplaceError), explain():
            loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameter_updated_between_blocks():
    """A parameter that an optimiser updates in the block, with a graph from before it."""
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(2, 3, requires_grad=True)
    loss = net(x).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(InplaceError, match=r"in SGD\.step") as info, explain():
        optimizer.step()
        loss.backward()
    found = explanation_of(info.value)
    assert (found.name, found.role) == ("weight", "parameter of Linear")
    assert "before SGD.step" in found.fixes[0]


def test_caught_inside():
    """An error that the program handles itself is not ours to change."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.detach().zero_()
    with explain():
        with pytest.raises(RuntimeError) as info:
            y.sum().backward()
        assert type(info.value) is RuntimeError
