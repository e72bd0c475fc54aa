"""`freeze`: the same protection for a local variable."""

from __future__ import annotations

import pytest
import torch

from safemodule import InputMutationError, InputMutationWarning, freeze, freeze_inputs, mode, record
from tests.helpers import Caller, is_plain, line_of, same


def test_source_stays_as_it_is():
    """The write goes to a copy; the source keeps value and version."""
    source = torch.zeros(3)
    caller = Caller(source)
    t = freeze(source)
    t.add_(1)
    t[0] = 5.0
    caller.check()
    assert t.tolist() == [5, 1, 1]


def test_shares_memory_until_written():
    """Nothing is copied before."""
    source = torch.zeros(3)
    t = freeze(source)
    source.add_(1)
    assert t.tolist() == [1, 1, 1]
    t.mul_(2)
    source.add_(1)
    assert t.tolist() == [2, 2, 2]


def test_is_in_the_graph():
    """Gradients flow through it, read and written."""
    w = torch.ones(3, requires_grad=True)
    t = freeze(w * 2)
    y = t * t
    t[1:] = 0.0
    (y.sum() + t.sum()).backward()
    assert w.grad.tolist() == [10, 8, 8]


def test_leaf():
    """A frozen leaf may be written, and its gradient goes to the leaf."""
    w = torch.ones(3, requires_grad=True)
    t = freeze(w)
    t += 1
    (t * t).sum().backward()
    assert w.grad.tolist() == [4, 4, 4]
    assert w.tolist() == [1, 1, 1]


def test_record_names_it():
    """By the name given, else by the line that froze it; and by the function."""
    with record() as log:
        freeze(torch.zeros(2), name="mask").add_(1)
        freeze(torch.zeros(2)).add_(1)  # frozen
    assert [m.argument for m in log] == ["mask", f"<frozen at line {line_of('frozen')}>"]
    assert log[0].module.endswith("test_record_names_it")
    assert log[1].lineno == line_of("frozen")


def test_modes():
    """Strict refuses, warn warns, off returns the tensor itself."""
    source = torch.zeros(2)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        freeze(source, name="t").add_(1)
    assert caught.value.mutation.argument == "t"
    with mode("warn"), pytest.warns(InputMutationWarning, match="argument t"):
        freeze(source, name="t").add_(1)
    with mode("off"):
        assert freeze(source) is source
    assert source.tolist() == [0, 0]


def test_off_is_asked_when_it_is_frozen():
    """A handle made before stays protective, without a record."""
    source = torch.zeros(2)
    t = freeze(source)
    with mode("off"), record() as log:
        t.add_(1)
    assert source.tolist() == [0, 0]
    assert list(log) == []


@pytest.mark.parametrize("what", [None, 3, [1.0], "x", torch.nn.ReLU()])
def test_refuses_what_is_no_tensor(what):
    """With its type."""
    with pytest.raises(TypeError, match=f"not {type(what).__name__}"):
        freeze(what)


def test_frozen_inside_a_guarded_call():
    """A frozen view of an input belongs to itself; the input and the caller are untouched."""

    @freeze_inputs
    def forward(x):
        t = freeze(x[:1])
        t.add_(1)
        return x * 1, t

    x = torch.zeros(2)
    caller = Caller(x)
    a, b = forward(x)
    caller.check()
    assert (a.tolist(), b.tolist()) == ([0, 0], [1])
    assert is_plain(b)


def test_returned_from_a_guarded_call_unwritten():
    """A frozen tensor returned unwritten is the source; of an input, the caller's own."""

    @freeze_inputs
    def forward(x):
        return freeze(x)

    x = torch.zeros(2)
    out = forward(x)
    assert is_plain(out)
    assert out is x


def test_given_to_a_guarded_call():
    """As any tensor: the callee cannot write it."""
    guarded = freeze_inputs(lambda x: x.add_(1))
    t = freeze(torch.zeros(2))
    assert guarded(t).tolist() == [1, 1]
    assert t.tolist() == [0, 0]


def test_of_a_frozen_tensor():
    """Two levels: neither writes the other."""
    source = torch.zeros(2)
    a = freeze(source)
    b = freeze(a)
    b.add_(1)
    a.add_(5)
    assert [t.tolist() for t in (source, a, b)] == [[0, 0], [5, 5], [1, 1]]


def test_of_a_view():
    """Only the view's elements are copied."""
    base = torch.zeros(100)
    with record() as log:
        t = freeze(base[10:12])
        t.add_(1)
    assert log[0].bytes_copied == 8
    assert not base.any()


@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(3).to_sparse(), lambda: torch.ones(2).as_subclass(Other)],
    ids=["sparse", "subclass"],
)
def test_other_kinds_are_cloned_at_once(make):
    """Of the same kind."""
    x = make()
    t = freeze(x)
    assert t is not x
    assert type(t) is type(x)
    assert t.layout == x.layout


class Other(torch.Tensor):
    """Somebody's subclass."""


def test_type_is_the_callers_to_isinstance():
    """It is a `torch.Tensor`, and shows as one."""
    t = freeze(torch.zeros(2))
    assert isinstance(t, torch.Tensor)
    assert torch.is_tensor(t)
    assert repr(t) == "tensor([0., 0.])"


def test_under_no_grad():
    """A frozen tensor that requires a gradient keeps its graph."""
    w = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        t = freeze(w)
    assert t.requires_grad
    y = t * t
    with torch.no_grad():
        t.zero_()
    y.sum().backward()
    same(w.grad, torch.full((2,), 2.0))
