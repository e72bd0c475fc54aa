"""Compiled code runs as it does without `explain()`, inside of a block and around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule._errors import InplaceError
from safemodule._explain import explain

pytestmark = [
    pytest.mark.slow,  # the compiler takes seconds to import
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own parts
]


@pytest.fixture
def compiling():
    """Return `torch.compile`, and the list of the graphs that it has compiled."""
    import torch._dynamo
    from torch._dynamo.backends.registry import lookup_backend

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    yield lambda f, **options: torch.compile(f, backend=backend, **options), graphs
    torch._dynamo.reset()


def gradients(f, *, block):
    """Return the gradient of a function, in a block or without one."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, requires_grad=True)
    if block:
        with explain():
            f(x).sum().backward()
    else:
        f(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("fullgraph", [False, True])
def test_function(compiling, fullgraph):
    """A function is compiled, whole if asked for, and gives the same gradient."""
    compile_, graphs = compiling

    def f(x):
        y = x.sin()
        y.mul_(2)
        return (y * y).exp()

    compiled = compile_(f, fullgraph=fullgraph)
    torch.testing.assert_close(gradients(compiled, block=True), gradients(f, block=False))
    assert len(graphs) == 1


def test_module(compiling):
    """A module is compiled."""
    compile_, graphs = compiling
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    compiled = compile_(net, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, block=True), gradients(net, block=False))
    assert len(graphs) == 1


def test_used_in_and_out_of_blocks(compiling):
    """What was compiled outside of a block gives the same inside, and the other way round."""
    compile_, graphs = compiling
    compiled = compile_(lambda x: x.sin() * 2)
    first, *others = [gradients(compiled, block=block) for block in (False, True, False, True)]
    for other in others:
        torch.testing.assert_close(other, first)
    assert 1 <= len(graphs) <= 4


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at a non-leaf
def test_graph_break(compiling):
    """Between the parts of a broken graph, our own code is not compiled."""
    compile_, graphs = compiling

    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        y = y * 2
        y.add_(1)
        return y * y

    def broken(x):
        y = x.exp()
        torch._dynamo.graph_break()
        y.add_(1)
        torch._dynamo.graph_break()
        return y * 1

    torch.testing.assert_close(gradients(compile_(f), block=True), gradients(f, block=False))
    assert len(graphs) == 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(compile_(broken), block=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_operation_between_two_graphs(compiling):
    """An operation that the compiler leaves to Python starts our mode and our hooks, uncompiled."""
    compile_, graphs = compiling

    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        n = torch.nonzero(y > 0)  # its shape depends on values: not compiled
        return y * len(n)

    def count(block):
        graphs.clear()
        torch._dynamo.reset()
        gradients(compile_(f), block=block)
        return len(graphs)

    assert count(block=True) == count(block=False) > 1


@pytest.mark.skipif(torch.__version__ < "2.7", reason="the compiler breaks the graph at `with`")
def test_block_inside_of_a_compiled_function(compiling):
    """A block in compiled code is nothing: the region stays whole."""
    compile_, graphs = compiling

    def f(x):
        with explain():
            y = x.sin()
        return y * y

    compiled = compile_(f, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, block=False), gradients(f, block=False))
    assert len(graphs) == 1


def test_errors_around_a_compiled_region(compiling):
    """What is saved and written outside of the region is explained."""
    compiled = compiling[0](lambda x: x.sin())
    with pytest.raises(InplaceError, match="written by zero_"), explain():
        x = torch.randn(3, requires_grad=True)
        y = compiled(x).exp()
        y.detach().zero_()
        y.sum().backward()
