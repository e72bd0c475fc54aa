"""The way out: what a guarded call hands back."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze, freeze_inputs
from safemodule._tensor import FrozenTensor
from tests.helpers import assert_plain, is_plain


@dataclasses.dataclass
class Output:
    """A dataclass result."""

    a: Any
    b: Any = None


class Pair(NamedTuple):
    """A named tuple result."""

    a: Any
    b: Any


def test_unwritten_input_is_the_same_object():
    """In every position."""

    @freeze_inputs
    def forward(x):
        return x, [x], {"k": (x,)}, Output(x), Pair(x, 1)

    x = torch.zeros(2)
    a, b, c, d, e = forward(x)
    assert all(t is x for t in (a, b[0], c["k"][0], d.a, e.a))


def test_written_input_is_one_plain_object():
    """The same in every position, with its gradient history."""

    @freeze_inputs
    def forward(x):
        x.mul_(2)
        return x, [x], Output(x)

    x = torch.ones(2, requires_grad=True)
    a, b, c = forward(x)
    assert a is b[0]
    assert a is c.a
    assert a is not x
    assert is_plain(a)
    a.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_views_share_memory_with_what_they_are_views_of():
    """A written input and its view, handed out together, still belong together."""

    @freeze_inputs
    def forward(x):
        x.mul_(2)
        return x, x[0]

    a, b = forward(torch.ones(2, 2))
    b.zero_()
    assert a.tolist() == [[0, 0], [2, 2]]
    assert b.data_ptr() == a.data_ptr()


def test_a_view_of_an_unwritten_input_is_a_view_of_the_callers_tensor():
    """In autograd too."""

    @freeze_inputs
    def forward(x):
        return x[0]

    x = torch.ones(2, 2, requires_grad=True) * 1
    v = forward(x)
    assert is_plain(v)
    v.mul_(3)
    assert x.tolist() == [[3, 3], [1, 1]]
    assert x.grad_fn is not None


def test_the_result_can_be_written_by_the_caller():
    """It is an ordinary tensor: in-place operations work, and reach nobody else."""

    @freeze_inputs
    def forward(x):
        x.mul_(2)
        return x

    x = torch.ones(2)
    out = forward(x)
    out.add_(1)
    assert (out.tolist(), x.tolist()) == ([3, 3], [1, 1])


def test_what_the_module_keeps_of_a_result():
    """The object handed out is the module's own too: after the call it is plain for both."""

    class Keeps(SafeModule):
        def forward(self, x):
            x.mul_(2)
            self.kept = x
            return x

    net = Keeps()
    x = torch.ones(2)
    out = net(x)
    assert out is net.kept
    assert is_plain(net.kept)
    assert x.tolist() == [1, 1]


def test_hidden_in_self_and_returned_unwritten():
    """The module keeps a handle, the caller gets its own tensor."""

    class Keeps(SafeModule):
        def forward(self, x):
            self.kept = x
            return x

    net = Keeps()
    x = torch.ones(2)
    assert net(x) is x
    assert type(net.kept) is FrozenTensor
    net.kept.add_(1)
    assert x.tolist() == [1, 1]


def test_frozen_locals_come_out_plain():
    """`freeze` inside: written or not."""

    @freeze_inputs
    def forward(x):
        a, b = freeze(x * 1), freeze(x * 2)
        a.add_(1)
        return a, b, [a[:1]]

    out = forward(torch.ones(2))
    assert_plain(out)
    assert [t.tolist() for t in out[:2]] == [[2, 2], [2, 2]]


def test_containers_made_by_the_module_keep_their_identity():
    """They are changed in place where they hold handles, never rebuilt."""
    kept = {}

    @freeze_inputs
    def forward(x):
        kept.update(list=[x], dict={"x": x}, data=Output(x, [x]))
        return kept["list"], kept["dict"], kept["data"]

    x = torch.zeros(1)
    a, b, c = forward(x)
    assert a is kept["list"]
    assert b is kept["dict"]
    assert c is kept["data"]
    assert c.b[0] is x


def test_tuples_without_handles_keep_their_identity():
    """Nothing is rebuilt without need."""
    result = (1, (2, [3]), torch.zeros(1))
    assert freeze_inputs(lambda x: result)(torch.zeros(1)) is result


def test_a_result_that_contains_itself():
    """Is walked once."""

    @freeze_inputs
    def forward(x):
        out = [x]
        out.append(out)
        return out

    x = torch.zeros(1)
    out = forward(x)
    assert out[0] is x
    assert out[1] is out


def test_shared_parts_stay_shared():
    """One list in two places."""

    @freeze_inputs
    def forward(x):
        x.add_(1)
        part = [x]
        return {"a": part, "b": part}

    out = forward(torch.zeros(1))
    assert out["a"] is out["b"]


def test_modules_in_results():
    """A module is no container."""
    net = nn.Linear(1, 1)
    assert freeze_inputs(lambda x: (net, x))(torch.zeros(1))[0] is net


def test_parameters_and_buffers_of_the_module():
    """Come out as they are."""

    class Net(SafeModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.w, x

    net = Net()
    w, _ = net(torch.zeros(1))
    assert w is net.w


class Broken:
    """An object that cannot be walked: any question raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_objects_that_answer_no_question():
    """Pass through."""
    thing = Broken()
    assert freeze_inputs(lambda x: thing)(torch.zeros(1)) is thing
    assert freeze_inputs(lambda x: x)(thing) is thing


class Slots:
    """An unknown object with slots."""

    __slots__ = ("x",)


def test_unknown_objects_are_not_touched():
    """What they hold stays what it is."""

    @freeze_inputs
    def forward(x):
        out = Slots()
        out.x = x
        return out

    x = torch.zeros(1)
    out = forward(x)
    out.x.add_(1)
    assert x.tolist() == [0]


@pytest.mark.parametrize("inner", [lambda x: x, lambda x: x[:1], lambda x: x.add_(1)])
def test_gradients_of_what_comes_out(inner):
    """As of a plain module on a clone."""
    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    (freeze_inputs(inner)(x) * 3).sum().backward()
    (inner(y.clone()) * 3).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


@dataclasses.dataclass
class Open:
    """A dataclass."""

    x: Any


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A frozen dataclass."""

    x: Any


@pytest.mark.parametrize(
    "make",
    [lambda x: collections.UserDict(x=x), Fixed, lambda x: [Fixed(x)], lambda x: Open([Open(x)])],
    ids=["UserDict", "frozen dataclass", "in a list", "dataclass"],
)
def test_container_that_comes_back_as_it_was(make):
    """The caller's own object, whatever its kind."""
    given = make(torch.zeros(1))
    assert freeze_inputs(lambda d: d)(given) is given


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_that_is_frozen_inside():
    """It has no strides: what it shares memory with tells whether the input has moved on."""
    ragged = [torch.zeros(2, 2), torch.zeros(1, 2)]
    x = torch.nested.nested_tensor(ragged, layout=torch.strided)

    @freeze_inputs
    def forward(x, write):
        kept, written = freeze(x), freeze(x)
        if write:
            x.add_(1)
            written.add_(5)
        return kept, x, written

    out = forward(x, True)
    assert [t[0].unique().tolist() for t in out] == [[0], [1], [5]]
    assert x[0].unique().tolist() == [0]
    assert all(t is x for t in forward(x, False))
