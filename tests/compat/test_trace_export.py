"""Tracers and exporters: what they record of a guarded module, and tracing inside of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from safemodule import InputMutationError, SafeModule, freeze_inputs, mode, record
from tests.helpers import Caller, assert_plain, compare_with_clones, same

# TorchScript is deprecated, and in use; `torch.export` itself uses what is deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    # What the versions of torch say of their own insides.
    pytest.mark.filterwarnings(r"ignore:::torch\..*"),
]


class Writes(SafeModule):
    """Writes both inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x, mask):
        y = self.linear(x)
        mask[:, 0] = True
        x.add_(1)
        return (y + x).masked_fill(mask, 0.0)


def inputs():
    """Return values and a mask."""
    return torch.linspace(-1, 1, 6).reshape(2, 3), torch.zeros(2, 3, dtype=torch.bool)


def agrees(traced):
    """Assert that a traced form of `Writes` gives its results and leaves the caller alone."""
    expected = Writes()(*inputs())
    for _ in range(2):
        x, mask = inputs()
        caller = Caller(x, mask)
        out = traced(x, mask)
        assert_plain(out)
        same(out.detach(), expected.detach(), exact=False)
        caller.check()


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    """`torch.export`, and the exported program run."""
    program = torch.export.export(Writes(), inputs(), strict=strict)
    agrees(program.module())
    assert "BUFFER_MUTATION" not in str(program.graph_signature)
    assert "USER_INPUT_MUTATION" not in str(program.graph_signature)


def test_export_with_dynamic_shapes_and_decompositions():
    """A batch dimension that is free, and the program decomposed into core operators."""
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Writes(), inputs(), dynamic_shapes=({0: batch}, {0: batch}))
    decomposed = program.run_decompositions()
    x, mask = torch.ones(5, 3), torch.zeros(5, 3, dtype=torch.bool)
    caller = Caller(x, mask)
    expected = Writes()(x, mask).detach()
    same(program.module()(x, mask).detach(), expected, exact=False)
    same(decomposed.module()(x, mask).detach(), expected, exact=False)
    caller.check()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace():
    """`torch.jit.trace` records a clone for each input."""
    agrees(torch.jit.trace(Writes(), inputs()))


def test_fx_symbolic_trace():
    """`torch.fx.symbolic_trace` runs the forward on proxies, which are no tensors."""

    class Adds(SafeModule):
        def forward(self, x):
            return x + 1

    graph = torch.fx.symbolic_trace(Adds())
    same(graph(torch.ones(2)), torch.full((2,), 2.0))
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_function", "output"]


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(tracing_mode):
    """`make_fx` records the clone and the write on it."""
    module = Writes()

    def forward(x, mask, parameters):
        return torch.func.functional_call(module, parameters, (x, mask))

    parameters = dict(module.named_parameters())
    graph = make_fx(forward, tracing_mode=tracing_mode)(*inputs(), parameters)
    agrees(lambda x, mask: graph(x, mask, parameters))


def test_make_fx_functionalized():
    """`torch.func.functionalize` turns the writes into values."""
    graph = make_fx(torch.func.functionalize(Writes()))(*inputs())
    agrees(graph)
    names = [str(node.target) for node in graph.graph.nodes]
    assert not [name for name in names if name.split(".")[1:2] == ["add_"]]


def test_aot_function():
    """`aot_function` of the older interface."""
    from functorch.compile import aot_function, nop

    def forward(x, w):
        x.add_(1)
        return x * w

    guarded = freeze_inputs(forward)
    compiled = aot_function(guarded, fw_compiler=nop)
    x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
    caller = Caller(x)
    same(compiled(x, w), guarded(x, w))
    caller.check()


# -- TorchScript inside ----------------------------------------------------------------------------


def reads(x):
    """Read only."""
    return x * x + 1


def writes(x):
    """Write the argument."""
    x.add_(1)
    return x * 2


class ScriptedInside(SafeModule):
    """A scripted submodule between two writes."""

    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        self.reads = torch.jit.script(reads)

    def forward(self, x):
        y = self.inner(x)
        x.add_(1)
        z = self.reads(x)
        x.mul_(2)
        return y.sum() + z.sum() + self.inner(x).sum()


def test_scripted_code_inside():
    """Scripted modules and functions read handles: results and gradients of clones."""
    torch.manual_seed(0)
    module = ScriptedInside()

    def reference(x):
        after = x + 1
        inner = module.inner
        return inner(x).sum() + reads(after).sum() + inner(after * 2).sum()

    compare_with_clones(
        module,
        reference,
        lambda: (inputs()[0].requires_grad_(),),
        parameters=list(module.parameters()),
        exact=False,
    )


def test_scripted_code_that_writes_is_reported():
    """A scripted function writes past Python: it is found when the guarded call ends."""
    scripted = torch.jit.script(writes)
    guarded = freeze_inputs(lambda x: scripted(x))
    x = torch.ones(2)
    with record() as log:
        guarded(x)
    assert [(m.op, m.kind) for m in log] == [("(unseen)", "unseen")]
    with mode("strict"), pytest.raises(InputMutationError, match="does not see"):
        guarded(torch.ones(2))


def test_scripted_code_that_writes_after_a_clone():
    """The remedy that the message names."""
    scripted = torch.jit.script(writes)
    guarded = freeze_inputs(lambda x: scripted(x.clone()))
    compare_with_clones(guarded, writes, lambda: (torch.ones(2),))


# -- tracing inside a guarded call -----------------------------------------------------------------


def test_flop_counter_and_profilers_inside():
    """Dispatch modes that only count, entered inside a guarded forward."""
    from torch.utils.flop_counter import FlopCounterMode

    @freeze_inputs
    def forward(x):
        with FlopCounterMode(display=False) as counter:
            x.add_(1)
            y = x @ x
        return y, counter.get_total_flops()

    x = torch.ones(3, 3)
    caller = Caller(x)
    y, flops = forward(x)
    assert flops == 2 * 3**3
    same(y, torch.full((3, 3), 12.0))
    caller.check()


def test_flop_counter_around():
    """A dispatch mode around a guarded call: inputs are cloned, as for a tracer."""
    from torch.utils.flop_counter import FlopCounterMode

    x, mask = inputs()
    caller = Caller(x, mask)
    module = Writes()
    expected = module(x, mask)
    with FlopCounterMode(display=False) as counter:
        out = module(x, mask)
    same(out, expected)
    assert counter.get_total_flops() == 2 * 2 * 3 * 3
    caller.check()


def test_make_fx_inside():
    """A function traced inside a guarded forward, of a handle and of one it closes over."""

    @freeze_inputs
    def forward(x):
        traced = make_fx(lambda t: t * 2)(x)
        closed = make_fx(lambda t: t * x)(torch.ones(3))
        y = traced(x) + closed(x)
        x.add_(1)
        return y + x

    x = torch.ones(3)
    caller = Caller(x)
    same(forward(x), torch.full((3,), 5.0))
    caller.check()


def test_fake_tensor_mode_inside():
    """Shapes worked out by fake tensors inside a guarded forward."""
    from torch._subclasses import FakeTensorMode

    @freeze_inputs
    def forward(x):
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake = fake_mode.from_tensor(x)
        with fake_mode:
            mixed = x @ fake
        return (fake @ fake).shape, mixed.shape

    x = torch.ones(3, 3)
    caller = Caller(x)
    assert forward(x) == ((3, 3), (3, 3))
    caller.check()


def test_export_inside():
    """A module exported inside a guarded forward, with a handle as the example."""
    layer = nn.Linear(3, 3)

    @freeze_inputs
    def forward(x):
        program = torch.export.export(layer, (x,))
        return program.module()(x)

    x = inputs()[0]
    same(forward(x).detach(), layer(x).detach(), exact=False)
