"""Every module of the zoo, in every way it can be guarded."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import strided

from safemodule import (
    InputMutationError,
    InputMutationWarning,
    SafeModule,
    freeze_inputs,
    mode,
    record,
)
from tests.helpers import (
    Caller,
    assert_plain,
    assert_same_results,
    cloned,
    compare_with_clones,
    detached,
    leaves,
    loss,
    safe,
    same,
    tensors,
)
from tests.zoo import edges
from tests.zoo.autograd import FunctionThatWritesItsInput

EDGES = edges()
# Refused under no_grad, by a clear error, where the input requires a gradient: PyTorch has noted the
# input as dirty before it can be told of the copy. See `test_custom.py`.
MARK_DIRTY = {FunctionThatWritesItsInput}
every = pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.__name__)
that_write = pytest.mark.parametrize(
    "edge", [edge for edge in EDGES if edge.writes], ids=lambda edge: edge.__name__
)


def pair(edge, **keywords):
    """Return a guarded and a plain module of one edge, with the same parameters."""
    return safe(edge, **keywords)(), edge()


def check(edge, guarded, plain):
    """Compare a guarded callable with the plain module on clones."""
    return compare_with_clones(
        guarded,
        plain,
        edge.inputs,
        reference=plain.reference if edge.refused else None,
        strides=edge.dense,
        exact=not edge.refused,
    )


def outcome(call, inputs):
    """Run something; return its result, or the type and text of what it raises."""
    torch.manual_seed(0)
    try:
        return call(*inputs), None
    except (RuntimeError, TypeError, AttributeError) as error:
        return None, (type(error), str(error).split("\n")[0])


def test_zoo_is_complete():
    """No module of the zoo is lost on the way here, and each says what it is for."""
    assert len(EDGES) > 120
    assert len({edge.__name__ for edge in EDGES}) == len(EDGES)
    assert all(edge.__doc__ for edge in EDGES)


@every
def test_as_if_cloned(edge):
    """A `SafeModule` gives the results, gradients and records that its zoo entry states."""
    guarded, plain = pair(edge)
    result = check(edge, guarded, plain)
    assert [(m.op, m.argument) for m in result.writes] == edge.writes
    assert all(m.filename.startswith(edge_folder()) for m in result.writes)


def edge_folder():
    """Return the folder of the zoo, where every write of it happens."""
    import tests.zoo

    return tests.zoo.__path__[0]


@every
def test_as_a_function(edge):
    """`freeze_inputs` on a bound method does the same."""
    plain = edge()
    result = check(edge, freeze_inputs(edge().forward), plain)
    assert [(m.op, m.argument) for m in result.writes] == edge.writes


@every
def test_snapshot(edge):
    """A snapshot of the inputs changes no result."""
    guarded, plain = pair(edge, snapshot=True)
    result = check(edge, guarded, plain)
    assert [(m.op, m.argument) for m in result.writes] == edge.writes


@every
def test_inside_another_guarded_module(edge):
    """Handed on by an outer guarded module, the inputs are as safe, and the records the same."""

    class Outer(SafeModule):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return self.inner(*args)

    guarded, plain = pair(edge)
    result = check(edge, Outer(guarded), plain)
    assert [(m.op, m.argument) for m in result.writes] == edge.writes


@every
def test_outer_inputs_survive_an_inner_guarded_module(edge):
    """The outer's own values are the caller's to the inner module: it leaves them alone."""

    class Outer(SafeModule):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            caller = Caller(*args)
            out = self.inner(*args)
            for path, value in caller.copies.items():
                same(caller.parts[path].detach(), value, path)
            return out

    guarded, plain = pair(edge)
    check(edge, Outer(guarded), plain)


@every
def test_as_a_submodule(edge):
    """An unguarded module inside a guarded one is covered by it."""

    class Outer(SafeModule):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return self.inner(*args)

    check(edge, Outer(edge()), edge())


@pytest.mark.parametrize(
    "edge",
    [edge for edge in EDGES if not edge.needs_grad and edge not in MARK_DIRTY],
    ids=lambda edge: edge.__name__,
)
def test_without_gradients(edge):
    """Under no_grad the results are those of clones, for every edge."""
    guarded, plain = pair(edge)
    with torch.no_grad():
        compare_with_clones(guarded, plain, edge.inputs, strides=edge.dense, backward=False)


@pytest.mark.parametrize(
    "edge", [edge for edge in EDGES if not edge.needs_grad], ids=lambda edge: edge.__name__
)
def test_in_inference_mode(edge):
    """In `inference_mode` likewise."""
    guarded, plain = pair(edge)
    with torch.inference_mode():
        compare_with_clones(
            guarded,
            plain,
            lambda: detached(edge.inputs()),
            strides=edge.dense,
            backward=False,
        )


@every
def test_second_derivatives(edge):
    """The gradient of the gradient is that of the oracle."""

    def second(net, inputs, copies):
        torch.manual_seed(0)
        total = loss(net(*copies))
        wanted = leaves(*inputs)
        if total is None or not wanted:
            return []
        first = torch.autograd.grad(total**2, wanted, create_graph=True, allow_unused=True)
        norm = sum((g * g).sum().abs() for g in first if g is not None and g.requires_grad)
        if not isinstance(norm, torch.Tensor):
            return []
        return torch.autograd.grad(norm, wanted, allow_unused=True)

    guarded, plain = pair(edge)
    theirs, mine = edge.inputs(), edge.inputs()
    expected = second(plain.reference if edge.refused else plain, theirs, cloned(theirs))
    for grad, want in zip(second(guarded, mine, mine), expected, strict=True):
        assert (grad is None) == (want is None)
        if grad is not None:
            same(grad, want, exact=False)


class Outer(SafeModule):
    """Hands its inputs on, and holds views of them."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        self.kept = [t[:1] for t in tensors(list(args)).values() if t.ndim and t.layout is strided]
        return self.inner(*args)


class SnapshotOuter(Outer, snapshot=True):
    """The same with a snapshot."""


@every
@pytest.mark.parametrize("outer", [Outer, SnapshotOuter])
def test_snapshots_and_guards_in_each_other(edge, outer):
    """A snapshot inside a guard, and a snapshot inside a snapshot, with views held by the outer."""
    guarded, plain = pair(edge, snapshot=True)
    check(edge, outer(guarded), plain)


@every
def test_again(edge):
    """The same call on the same inputs gives the same result: the first left nothing behind."""
    guarded = safe(edge)()
    inputs = edge.inputs()
    torch.manual_seed(0)
    first = guarded(*inputs)
    torch.manual_seed(0)
    assert_same_results(guarded(*inputs), first)


@every
def test_off(edge):
    """With the mode off the module is a plain one, its harm to the caller included."""
    guarded, plain = pair(edge, mode="off")
    mine, theirs = edge.inputs(), edge.inputs()
    with record() as log:
        out, error = outcome(guarded, mine)
    expected, expected_error = outcome(plain, theirs)
    assert error == expected_error
    if error is None:
        assert_same_results(out, expected)
    for path, tensor in tensors(mine).items():
        same(tensor.detach(), tensors(theirs)[path].detach(), path)
    inner = {name for _, name in edge.writes} - {"t"}  # what a guarded module inside it wrote
    assert not [m for m in log if m.argument in inner and m.argument != "x"]


@that_write
def test_strict_refuses(edge):
    """In strict mode a module that writes raises at the first write, with nothing changed."""
    guarded = safe(edge)()
    inputs = edge.inputs()
    caller = Caller(*inputs)
    torch.manual_seed(0)
    with mode("strict"), record() as log, pytest.raises(InputMutationError) as caught:
        guarded(*inputs)
    caller.check()
    first = caught.value.mutation
    assert (first.op, first.argument) == edge.writes[0]
    assert list(log) == []


@pytest.mark.parametrize(
    "edge", [edge for edge in EDGES if not edge.writes], ids=lambda edge: edge.__name__
)
def test_strict_allows(edge):
    """In strict mode a module that writes nothing works."""
    guarded, plain = pair(edge)
    with mode("strict"):
        check(edge, guarded, plain)


@that_write
def test_warn(edge):
    """In warn mode each site warns at its line."""
    guarded = safe(edge)()
    with mode("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_plain(guarded(*edge.inputs()))
    seen = dict.fromkeys(
        (w.message.mutation.op, w.message.mutation.argument, w.lineno)
        for w in caught
        if isinstance(w.message, InputMutationWarning)
    )
    assert [(op, argument) for op, argument, _ in seen] == edge.writes
