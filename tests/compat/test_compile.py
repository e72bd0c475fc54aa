"""Compilers: a guarded module that is compiled, and compiled code that is called from one."""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn

from safemodule import (
    InputMutationError,
    Mutable,
    SafeModule,
    freeze,
    freeze_inputs,
    guard,
    mode,
    record,
)
from tests.helpers import Caller, assert_plain, compare_with_clones, same

# TorchDynamo asks every tensor for `.grad`, of which PyTorch warns where it is no leaf.
# It makes an instance of a custom Function, and inductor imports what is deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    # What the versions of torch say of their own insides.
    pytest.mark.filterwarnings(r"ignore:::torch\..*"),
]

# Before 2.8, TorchDynamo cannot trace what reads an input and writes it later.
traces_handles = pytest.mark.skipif(
    torch.__version__ < "2.8", reason="reading, writing and backpropagating needs torch 2.8"
)

BACKENDS = ("eager", "aot_eager")

# Inductor compiles C++ on a CPU.
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor needs a C++ compiler, and finds none here",
)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Start each test without compiled code."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def two(grad=True):
    """Return a float input, and a mask."""
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(grad)
    return x, torch.zeros(2, 3, dtype=torch.bool)


def one():
    """Return a float input."""
    return (two()[0],)


class Writes(nn.Module):
    """Writes both inputs, then reads them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x, mask):
        mask[:, 0] = True
        x.add_(1)
        return self.linear(x).masked_fill(mask, 0.0)


class ReadsThenWrites(Writes):
    """Reads both inputs, writes them and reads them again; autograd saves each value."""

    def forward(self, x, mask):
        y = self.linear(x)
        kept = y.masked_fill(mask, 0.0)
        mask[:, 0] = True
        x.add_(1)
        return kept.sum() + (x * y).masked_fill(mask, 0.0).sum()


class Safe(SafeModule, Writes):
    """Writes, guarded."""


class SafeReads(SafeModule, ReadsThenWrites):
    """Reads, then writes, guarded."""


def agree(compiled, eager, make_inputs, parameters=()):
    """Assert that a compiled callable does what the guarded one does eagerly."""
    for _ in range(2):
        compare_with_clones(
            compiled,
            eager,
            make_inputs,
            reference=eager,
            parameters=parameters,
            strides=False,
            exact=False,
        )


def whole(function, backend="aot_eager", **options):
    """Compile without a break."""
    return torch.compile(function, fullgraph=True, backend=backend, **options)


# -- a guarded module is compiled ------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [Safe, pytest.param(SafeReads, marks=traces_handles)])
def test_compiled_fullgraph(cls, backend):
    """A guarded module compiles in one piece; the caller's tensors stay, gradients are right."""
    module = cls()
    agree(whole(module, backend), module, two, list(module.parameters()))


@pytest.mark.parametrize("cls", [Safe, pytest.param(SafeReads, marks=traces_handles)])
def test_module_compile(cls):
    """`module.compile()` in place works as `torch.compile(module)` does."""
    module, other = cls(), cls()
    module.compile(fullgraph=True, backend="aot_eager")
    agree(module, other, two)


@traces_handles
def test_submodule_of_a_compiled_model():
    """A guarded module inside a plain one that is compiled."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = SafeReads()

        def forward(self, x, mask):
            return self.inner(x, mask) + x.sum() + mask.sum()

    module = Outer()
    agree(whole(module), module, two, list(module.parameters()))


@traces_handles
def test_nested_guarded_modules_compiled():
    """A guarded module that hands its written input to another guarded one."""

    class Outer(SafeModule):
        def __init__(self):
            super().__init__()
            self.inner = SafeReads()

        def forward(self, x, mask):
            before = (x * x).sum()
            x.mul_(2)
            return before + self.inner(x, mask) + (x * x).sum() + mask.sum()

    module = Outer()
    agree(whole(module), module, two, list(module.parameters()))


@pytest.mark.parametrize("cls", [Safe, pytest.param(SafeReads, marks=traces_handles)])
def test_dynamic_shapes(cls):
    """Symbolic shapes."""
    module = cls()
    compiled = whole(module, dynamic=True)
    for rows in (2, 5, 7):

        def inputs(rows=rows):
            x = torch.linspace(-1, 1, 3 * rows).reshape(rows, 3).requires_grad_()
            return x, torch.zeros(rows, 3, dtype=torch.bool)

        agree(compiled, module, inputs)


@traces_handles
def test_no_recompiles_because_of_us():
    """A guarded module is compiled as often as a plain one: once, and once more for a new shape."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counts = []
    for cls in (Writes, SafeReads):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(cls(), backend=counter)
        for rows in (2, 2, 3, 4, 4, 2):
            x = torch.zeros(rows, 3, requires_grad=True) + 1
            mask = torch.zeros(rows, 3, dtype=torch.bool)
            with record():
                compiled(x, mask)
        counts.append(counter.frame_count)
    assert counts[0] == counts[1] == 2


def test_compiled_without_gradients():
    """Under no_grad and inference_mode the compiled module writes a copy as well."""
    module = Safe()
    compiled = whole(module)
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode():
            x, mask = two(grad=False)
            caller = Caller(x, mask)
            same(compiled(x, mask), module(x, mask), exact=False)
            caller.check()


OPERATIONS = {
    "setitem": lambda x: [x.exp().sum(), x.__setitem__(0, 1.0), x * x][::2],
    "augmented": lambda x: _augmented(x),
    "view": lambda x: _through_a_view(x),
    "views both ways": lambda x: _both_ways(x),
    "relu(inplace=True)": lambda x: (x * x).sum() + nn.functional.relu(x, inplace=True) + x,
    "dropout(inplace=True)": lambda x: nn.functional.dropout(x, 0.0, inplace=True) * x,
    "saves its result": lambda x: [(x * x).sum(), x.exp_(), x.add_(1), x * x][0::3],
    "functions of one word": lambda x: [torch.tanh_(x), (x * x).sum(), x.mul_(2), x + 1][1::2],
    "activations": lambda x: [nn.functional.elu_(x), x * x, torch.relu_(x), x + 1][1::2],
    "under no_grad": lambda x: _under_no_grad(x),
    "foreach": lambda x: _foreach(x),
    "out=": lambda x: [x.exp(), torch.add(x.detach(), 1, out=x.data), x * 2][0::2],
    "unsqueeze_": lambda x: [x * x, x.unsqueeze_(0), x * 3][0::2],
    "batch_norm": lambda x: [nn.functional.batch_norm(x, None, None, training=True), x.add_(1)][0],
    "concatenation": lambda x: [torch.cat([x, x]).exp(), x.zero_(), torch.stack((x, x))][0::2],
    "checkpoint": lambda x: _checkpoint(x),
    "custom function": lambda x: [x.add_(1), Square.apply(x)],
    "norm": lambda x: [x.norm() + nn.functional.normalize(x).sum(), x.add_(1)][0],
    "attention": lambda x: _attention(x),
    "split": lambda x: [sum(a * b for a, b in zip(x.split(1), x, strict=True)), x.add_(1)][0],
    "shapes": lambda x: x.add_(1).view(x.shape[0], -1) * x.size(0) + x.numel() + len(x) + x.ndim,
    "vmap": lambda x: [x.add_(1), torch.vmap(lambda row: row * row)(x)],
    "returned": lambda x: x,
    "returned written": lambda x: x.add_(1),
    "returned views": lambda x: {"first": x[0], "turned": (x.t(), [x.view(-1)])},
}


def _augmented(x):
    y = (x * x).sum()
    x += 1
    x *= 2
    z = x * x
    x -= z
    return y + x + z


def _through_a_view(x):
    row = x[0]
    y = (row * row).sum() + (x * x).sum()
    row.mul_(3)
    return y + (row * row).sum() + (x * x).sum()


def _both_ways(x):
    flat, turned = x.view(-1), x.t()
    y = flat.exp().sum()
    turned[0] = 2.0
    y = y + (flat * flat).sum()
    flat[1:3] *= 2
    return y + (turned * turned).sum() + x.exp().sum()


def _under_no_grad(x):
    y = (x * x).sum()
    with torch.no_grad():
        x.clamp_(max=0)
    return y + (x * x).sum()


def _foreach(x):
    y = (x * x).sum()
    torch._foreach_add_([x], 1)
    return y + (x * x).sum()


def _checkpoint(x):
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(lambda t: (t * t).sin(), x, use_reentrant=False)
    x.add_(1)
    return y + x * x


def _attention(x):
    q = x[None]
    y = nn.functional.scaled_dot_product_attention(q, q, q)
    x.add_(1)
    return y + nn.functional.layer_norm(x, (3,))


class Square(torch.autograd.Function):
    """A custom Function that saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@traces_handles
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_compiled(name):
    """Every way to write, after autograd has used the value, in one piece."""
    guarded = freeze_inputs(OPERATIONS[name])
    agree(whole(guarded), guarded, one)


WRITES_RETURNED = {
    "relu_": lambda x, y: x.relu_(),
    "relu(inplace=True)": lambda x, y: nn.functional.relu(x, inplace=True),
    "leaky_relu(inplace=True)": lambda x, y: nn.functional.leaky_relu(x, 0.1, inplace=True),
    "exp_": lambda x, y: x.exp_(),
    "add_": lambda x, y: x.add_(y),
    "mul_ by itself": lambda x, y: x.mul_(x),
    "copy_": lambda x, y: x.copy_(y),
    "setitem": lambda x, y: [x.__setitem__(0, y[1]), x][1],
    "a view": lambda x, y: [x.view(-1).add_(y.view(-1)), x][1],
}


@traces_handles
@pytest.mark.parametrize("name", WRITES_RETURNED)
def test_a_written_input_stays_a_handle(name):
    """What was written with a tensor, or saved as a result, is returned, and is read and written."""
    write = WRITES_RETURNED[name]
    returned = freeze_inputs(write)

    @freeze_inputs
    def read_later(x, y):
        write(x, y)
        before = x.sin() + x.exp()
        x.mul_(2)
        return before, x

    def inputs():
        return one()[0], one()[0] + 2

    agree(whole(returned), returned, inputs)
    agree(whole(read_later), read_later, inputs)


def test_a_custom_function_saved_before_a_write_is_as_a_manual_clone():
    """PyTorch's compiler gives a custom Function the value of after the write, clone or not.

    `Function.apply` is not routed through tensor subclasses, so the compiler's own rule stays.
    """

    def forward(x):
        y = Square.apply(x)
        x.add_(1)
        return y

    found = []
    for function in (freeze_inputs(forward), lambda x: forward(x.clone())):
        x = two()[0]
        (grad,) = torch.autograd.grad(whole(function)(x).sum(), x)
        found.append(grad)
    same(found[0], found[1])
    x = two()[0]
    (eager,) = torch.autograd.grad(freeze_inputs(forward)(x).sum(), x)
    same(eager, 2 * x.detach(), exact=False)


class Named(NamedTuple):
    """A namedtuple."""

    x: torch.Tensor
    rest: list[torch.Tensor]


@traces_handles
@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"x": x, "rest": [x * 1]},
        lambda x: collections.OrderedDict(x=x, rest=[x * 1]),
    ],
    ids=["dict", "OrderedDict"],
)
def test_containers_compiled(make):
    """Tensors in containers are copies as well, and an entry set in forward stays inside."""

    @freeze_inputs
    def forward(batch):
        y = (batch["x"] * batch["x"]).sum()
        batch["x"].add_(1)
        batch["rest"][0].mul_(2)
        batch["new"] = batch["x"] * batch["rest"][0]
        return y + batch["new"].sum()

    def inputs():
        return (make(two()[0]),)

    agree(whole(forward), forward, inputs)


@traces_handles
def test_named_tuples_and_lists_compiled():
    """A namedtuple, a tuple and a list arrive with copies; results come back plain."""

    @freeze_inputs
    def forward(named, pair):
        y = (named.x * pair[0]).sum()
        named.x.add_(1)
        pair[1][0].add_(2)
        return Named(named.x, [pair[1][0]]), y

    def inputs():
        x = two()[0]
        return Named(x, [x * 2]), (x * 3, [x * 4])

    agree(whole(forward), forward, inputs)


def test_the_same_tensor_twice_is_one_handle():
    """`query is key` holds in compiled code."""

    @freeze_inputs
    def forward(query, key):
        return query * 2 if query is key else query * 3

    x = torch.ones(2)
    same(whole(forward)(x, x), torch.full((2,), 2.0))


def test_mutable_is_written_when_compiled():
    """A declared exception reaches the caller's tensor."""

    @freeze_inputs
    def forward(x, cache: Mutable[torch.Tensor]):
        cache.add_(x)
        x.add_(1)
        return x * 2

    x, cache = torch.ones(2), torch.zeros(2)
    same(whole(forward)(x, cache), torch.full((2,), 4.0))
    same(x, torch.ones(2))
    same(cache, torch.ones(2))


@traces_handles
def test_freeze_compiled():
    """`freeze` on a local variable: the value that autograd saved keeps its gradient."""

    def forward(x):
        t = freeze(x.exp())
        y = (t * t).sum()
        t[:] = 3.0
        return y + t.sum()

    x = torch.ones(3, requires_grad=True)
    whole(forward)(x).backward()
    same(x.grad, 2 * torch.exp(torch.full((3,), 2.0)), exact=False)


def test_mode_off_compiled():
    """A class in mode "off" is compiled as it stands."""

    class Off(SafeModule, mode="off"):
        def forward(self, x):
            return x.add_(1)

    x = torch.ones(2)
    whole(Off())(x)
    same(x, torch.full((2,), 2.0))


def test_nothing_is_recorded_when_compiled():
    """Compiled writes go to copies without a record, in every mode."""
    module = Safe()
    compiled = whole(module)
    for chosen in ("copy", "warn", "strict"):
        with mode(chosen), record() as log:
            x, mask = two()
            compiled(x, mask)
            assert not log
            assert not mask.any()


def test_guarded_model_compiled():
    """`guard(model)` before compiling."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    x = two()[0]
    expected = model(x)
    with guard(model):
        compiled = whole(model)
        same(compiled(x), expected, exact=False)


def test_graph_break_inside_forward():
    """After a break in `forward` the pieces get copies: right values, and the caller untouched."""

    class Breaks(SafeModule):
        def forward(self, x):
            row = x[0]
            torch._dynamo.graph_break()
            row.mul_(2)
            y = x.exp()
            torch._dynamo.graph_break()
            return {"y": y, "x": x.add(1), "row": row}

    module = Breaks()
    for backend in BACKENDS:
        agree(torch.compile(module, backend=backend), module, one)


def test_graph_break_is_as_a_manual_clone():
    """Read, break, write: PyTorch's own error, as after `x = x.clone()`, and not a wrong gradient."""

    def forward(x):
        y = (x * x).sum()
        torch._dynamo.graph_break()
        x.add_(1)
        return y + x.sum()

    compiled = torch.compile(freeze_inputs(forward), backend="aot_eager")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(two()[0]).backward()


def test_state_kept_from_a_compiled_call_is_plain():
    """What a module keeps of its inputs across compiled calls is an ordinary tensor."""

    class Keeps(SafeModule):
        def __init__(self):
            super().__init__()
            self.before = None
            self.rows = []

        def forward(self, x):
            y = x * 2
            if self.before is not None:
                self.before.mul_(0.5)
                y = y + self.before
            self.before = x
            self.rows.append(x[0])
            return y

    for backend in BACKENDS:
        eager, compiled = Keeps(), Keeps()
        run = torch.compile(compiled, backend=backend)
        for step in range(3):
            x = torch.full((2, 3), float(step + 1))
            caller = Caller(x)
            same(run(x), eager(x))
            caller.check()
        assert type(compiled.before) is torch.Tensor
        assert [type(row) for row in compiled.rows] == [torch.Tensor] * 3


@traces_handles
def test_recompile_limit_falls_back():
    """Past the recompile limit the module runs without a compiler, with equal results."""
    import torch._dynamo

    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"

    @freeze_inputs
    def forward(x, factor):
        y = x * x
        x.mul_(factor)
        return y + x * x

    compiled = torch.compile(forward, backend="aot_eager", dynamic=False)
    with config.patch({limit: 2}):
        for rows in range(2, 6):

            def inputs(rows=rows):
                return torch.ones(rows, 3, requires_grad=True), float(rows)

            agree(compiled, forward, inputs)


# -- inductor --------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.slow
def test_inductor_drops_the_clones():
    """The code generated for a guarded function has no buffer and no kernel that the plain lacks."""
    from torch._inductor.utils import run_and_get_code

    def forward(x, mask):
        y = (x * x.sin()).masked_fill(mask, 0.0)
        return y.sum() + (x.view(-1) * 2).sum()

    counts = []
    for function in (forward, freeze_inputs(forward)):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True)
        x, mask = two()
        _, sources = run_and_get_code(lambda: compiled(x, mask).backward())
        counts.append(
            [
                (
                    len(re.findall(r"= empty_strided\w*\(", s)),
                    len(re.findall(r"async_compile\.", s)),
                )
                for s in sources
            ]
        )
        assert len(sources) == 2  # forward and backward
    assert counts[0] == counts[1]
    assert all(buffers > 0 for buffers, _ in counts[0])


@needs_compiler
@traces_handles
@pytest.mark.slow
def test_inductor_reads_then_writes():
    """The same gradients as without a compiler."""
    module = SafeReads()
    agree(torch.compile(module, fullgraph=True), module, two, list(module.parameters()))


# -- a guarded call runs without a compiler and calls something compiled ---------------------------


class Inner(nn.Module):
    """Writes nothing."""

    def forward(self, x):
        return x * x + 1


def crossing(inner, forward=None):
    """Return a guarded function that uses a compiled one between a write and a read."""

    @freeze_inputs
    def outer(x):
        y = inner(x)
        x.add_(1)
        return y.sum() + inner(x) + (x * x).sum()

    return outer


COMPILED = {
    "torch.compile(module)": lambda: whole(Inner()),
    "module.compile()": lambda: _compiled_in_place(Inner()),
    "torch.compile(function)": lambda: whole(lambda x: x * x + 1),
    "decorator": lambda: torch.compile(fullgraph=True, backend="aot_eager")(lambda x: x * x + 1),
    "a guarded module": lambda: whole(type("Guarded", (SafeModule, Inner), {})()),
}


def _compiled_in_place(module):
    module.compile(fullgraph=True, backend="aot_eager")
    return module


@pytest.mark.parametrize("name", COMPILED)
def test_calling_compiled_code(name):
    """A handle crosses into compiled code and back: results and gradients are those of clones."""
    outer = crossing(COMPILED[name]())
    plain = crossing(Inner())
    compare_with_clones(outer, plain, one, reference=plain, exact=False)


def test_compiled_submodule_is_compiled_once():
    """The compiled code of a guarded call is used, and it is the one that plain tensors get."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")

    class Outer(SafeModule):
        def __init__(self):
            super().__init__()
            self.inner = torch.compile(Inner(), backend=counter, fullgraph=True)

        def forward(self, x):
            return self.inner(x)

    outer = Outer()
    for _ in range(3):
        outer(two()[0] * 1)
    outer.inner(two()[0] * 1)
    assert counter.frame_count == 1


def test_compiled_code_that_writes_its_input():
    """What compiled code writes goes to a copy, is seen by the module, and is on record."""

    def forward(x, write):
        y = (x * x).sum()
        z = write(x)
        return y + z + (x * x).sum()

    def write(x):
        x.add_(1)
        return x * 2

    compiled = whole(write)
    guarded = freeze_inputs(lambda x: forward(x, compiled))
    plain = freeze_inputs(lambda x: forward(x, write))
    outcome = compare_with_clones(guarded, plain, one, reference=plain, exact=False)
    (written,) = outcome.writes
    assert (written.op, written.argument) == ("write (compiled)", "x")
    assert written.bytes_copied == 24

    with mode("strict"), pytest.raises(InputMutationError) as error:
        guarded(two()[0])
    assert error.value.mutation.argument == "x"


def test_views_from_compiled_code():
    """What compiled code returns of its input is a view of the handle, and stays one."""
    views = whole(lambda x: (x[0], x.t(), x))

    @freeze_inputs
    def guarded(x):
        row, turned, itself = views(x)
        assert itself is x
        y = (x * x).sum()
        row.mul_(2)
        return y + (x * x).sum() + (turned * turned).sum()

    def plain(x):
        scaled = torch.cat([x[:1] * 2, x[1:]])
        return (x * x).sum() + 2 * (scaled * scaled).sum()

    compare_with_clones(guarded, plain, one, reference=plain, exact=False)


def test_containers_cross_into_compiled_code():
    """A stand-in for the caller's dict crosses as a dict; an entry set there is on record."""

    def fill(batch):
        batch["y"] = batch["x"] * 2
        return batch["x"] + batch["y"]

    compiled = whole(fill)

    def forward(batch, fill):
        out = fill(batch)
        batch["x"].mul_(3)
        return out + batch["y"] + batch["x"] ** 2

    guarded = freeze_inputs(lambda batch: forward(batch, compiled))
    plain = freeze_inputs(lambda batch: forward(batch, fill))
    outcome = compare_with_clones(
        guarded, plain, lambda: ({"x": two()[0]},), reference=plain, exact=False
    )
    assert [(m.op, m.argument) for m in outcome.writes] == [
        ("__setitem__", "batch['y']"),
        ("mul_", "batch['x']"),
    ]


def test_a_value_that_autograd_saved_crosses_without_a_copy():
    """Compiled code that only reads gets the same private copy again and again."""
    inner = whole(lambda x, y: x * y)

    @freeze_inputs
    def guarded(x):
        y = x * 1
        for _ in range(4):
            y = inner(x, y)
        return y

    guarded(two()[0])  # the first call learns that nothing is written
    with record() as log:
        guarded(two()[0])
    assert [m.bytes_copied for m in (*log, *log.copies)] == [24]


def test_cond_inside_a_guarded_call():
    """`torch.cond` compiles its branches itself."""

    @freeze_inputs
    def guarded(x):
        y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
        x.add_(1)
        return y + x

    def plain(x):
        return (x.sin() if x.sum() > 0 else x.cos()) + x + 1

    compare_with_clones(guarded, plain, one, reference=plain, exact=False)


def test_graph_break_in_compiled_code_called_from_a_guarded_call():
    """Compiled in pieces, with a write between them."""

    def inner(x):
        y = x * x
        torch._dynamo.graph_break()
        x.mul_(2)
        return y.detach() + x

    compiled = torch.compile(inner, backend="aot_eager")
    guarded = freeze_inputs(lambda x: compiled(x) + x.exp())
    plain = freeze_inputs(lambda x: inner(x) + x.exp())
    for _ in range(2):
        compare_with_clones(guarded, plain, lambda: two(grad=False)[:1], exact=False)


def test_compiled_before_the_library_was_imported():
    """Compiled code that knows nothing of handles leaves them to Python: equal results, slower."""
    code = """
import torch

inner = torch.compile(lambda x: (x.add_(1), x * 2)[1], backend="aot_eager")

from safemodule import freeze_inputs
from safemodule import record


@freeze_inputs
def outer(x):
    y = (x * x).sum()
    return inner(x) + y


for _ in range(2):
    x = torch.ones(3, requires_grad=True)
    with record() as log:
        outer(x).sum().backward()
    assert x._version == 0 and x.grad.tolist() == [8.0] * 3, x.grad
    assert [m.op for m in log] == ["add_"], log
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_the_library_does_not_import_the_compiler():
    """`import safemodule` and a guarded call leave TorchDynamo out: it takes a second to import."""
    code = """
import sys, torch, safemodule
before = "torch._dynamo" in sys.modules
safemodule.freeze_inputs(lambda x: x.add_(1))(torch.ones(1))
assert before or "torch._dynamo" not in sys.modules
assert "torch._inductor" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_compiled_code_is_still_recognised():
    """Compiling what is compiled, disabling it and asking for its configuration work as ever."""
    import torch._dynamo
    from torch._dynamo.eval_frame import innermost_fn

    def function(x):
        return x * 2

    once = whole(function)
    assert innermost_fn(once) is function
    assert once.__name__ == "function"
    same(whole(once)(torch.ones(2)), torch.full((2,), 2.0))
    same(torch._dynamo.disable(once)(torch.ones(2)), torch.full((2,), 2.0))
    assert callable(once.get_compiler_config)


def test_a_disabled_function_stays_guarded():
    """`torch.compiler.disable` inside compiled code: the function gets a copy, as in one piece."""

    @torch.compiler.disable
    def outside(x):
        x.add_(1)
        return x * 2

    @freeze_inputs
    def forward(x):
        return outside(x) + x

    x = torch.ones(2)
    caller = Caller(x)
    out = torch.compile(forward, backend="aot_eager")(x)
    same(out, torch.full((2,), 6.0))
    assert_plain(out)
    caller.check()
