"""`assert_inputs_unchanged`: whatever a call changes about its inputs is named."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from safemodule import SafeModule, guard
from safemodule.testing import assert_inputs_unchanged


def changes(call, *args, **kwargs):
    """Return what is said of a call that changes its inputs, line by line."""
    with pytest.raises(AssertionError) as error:
        assert_inputs_unchanged(call, *args, **kwargs)
    head, *lines = str(error.value).split("\n  ")
    assert head.endswith(" changed its inputs:")
    return lines


def quiet(call, *args, **kwargs):
    """Assert that nothing is said."""
    assert_inputs_unchanged(call, *args, **kwargs)


class Point(NamedTuple):
    """A container that cannot be changed."""

    x: torch.Tensor
    y: object


@dataclasses.dataclass
class Batch:
    """A container with fields."""

    x: torch.Tensor
    note: str = ""


class Slotted:
    """An object of no known kind, without a dict."""

    __slots__ = ("__weakref__", "unset", "x")

    def __init__(self, x):
        self.x = x


def test_returns_what_the_module_returns():
    """The very object, also of a plain function."""
    x = torch.randn(3)
    out = assert_inputs_unchanged(nn.Linear(3, 2), x)
    assert out.requires_grad
    assert assert_inputs_unchanged(lambda t: t, x) is x


def test_errors_of_the_module_are_its_own():
    """So are those of a wrong call."""
    with pytest.raises(RuntimeError, match="mine"):
        assert_inputs_unchanged(_fail, torch.zeros(2))
    with pytest.raises(TypeError, match="missing 1 required"):
        assert_inputs_unchanged(nn.Linear(3, 2))


def _fail(x):
    x.add_(1)
    raise RuntimeError("mine")


def test_what_is_protected_passes():
    """The same write by a SafeModule, or under guard, changes nothing."""

    class Safe(SafeModule):
        def forward(self, x):
            return x.add_(1)

    x = torch.zeros(3, 4).t()
    quiet(Safe(), x)
    relu = nn.ReLU(inplace=True)
    with guard(relu):
        quiet(relu, x)
    assert changes(relu, x) == ["input: version 0 -> 1"]


@pytest.mark.parametrize(
    ("x", "write", "change"),
    [
        (torch.zeros(2, 3), lambda x: x[1].fill_(2),
         "values differ at 3 of 6 places, first at [1, 0]: 0.0 -> 2.0"),
        (torch.zeros(2, 3).t(), lambda x: x[2, 1].fill_(2),
         "values differ at 1 of 6 places, first at [2, 1]: 0.0 -> 2.0"),
        (torch.zeros(()), lambda x: x.fill_(2), "values differ at 1 of 1 places, first at []: 0.0 -> 2.0"),
        (torch.zeros(2), lambda x: x.neg_(), "values differ at 2 of 2 places, first at [0]: 0.0 -> -0.0"),
        (torch.tensor([1, 2]), lambda x: x.add_(1),
         "values differ at 2 of 2 places, first at [0]: 1 -> 2"),
        (torch.tensor([True, False]), lambda x: x.logical_not_(),
         "values differ at 2 of 2 places, first at [0]: True -> False"),
        (torch.tensor([1 + 2j]), lambda x: x.conj_physical_(),
         "values differ at 1 of 1 places, first at [0]: (1+2j) -> (1-2j)"),
        (torch.ones(2, dtype=torch.bfloat16), lambda x: x.zero_(),
         "values differ at 2 of 2 places, first at [0]: 1.0 -> 0.0"),
        (torch.tensor([float("nan"), 1.0]), lambda x: x[0].fill_(1),
         "values differ at 1 of 2 places, first at [0]: nan -> 1.0"),
        (torch.eye(2).to_sparse(), lambda x: x.mul_(2),
         "values differ at 2 of 4 places, first at [0]: 1.0 -> 2.0"),
    ],
    ids=["plain", "strided", "scalar", "sign", "int", "bool", "complex", "bfloat16", "nan",
         "sparse"],
)  # fmt: skip
def test_values(x, write, change):
    """The first difference is named, of any kind of tensor."""
    quiet(torch.clone, x)
    found = changes(lambda x: write(x), x)
    assert found[0].startswith(f"x: {change.partition(' first at')[0]}")
    assert found[0].endswith(change.rpartition(": ")[2])
    if x.layout is torch.strided:
        assert found[0] == f"x: {change}"


def test_nan_equals_itself():
    """A module that reads is not accused because of what it reads."""
    quiet(torch.sin, torch.tensor([float("nan"), float("inf"), -0.0]))


def test_writes_that_bypass_python():
    """The values tell: numpy, `.data`, a storage; a scripted function."""
    x = torch.zeros(3)
    assert changes(lambda x: x.numpy().fill(1), x) == [
        "x: values differ at 3 of 3 places, first at [0]: 0.0 -> 1.0"
    ]
    assert changes(lambda x: x.data.fill_(2), x)[0].startswith("x: values differ at 3")
    assert changes(lambda x: x.untyped_storage().fill_(0), x)[0].startswith("x: values differ at 3")


def test_a_write_of_equal_values():
    """The version tells."""
    assert changes(lambda x: x.mul_(1), torch.zeros(3)) == ["x: version 0 -> 1"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda x: x.t_(), ["x: shape (2, 3) -> (3, 2)", "x: strides (3, 1) -> (1, 3)"]),
        (
            lambda x: x.unsqueeze_(0),
            ["x: shape (2, 3) -> (1, 2, 3)", "x: strides (3, 1) -> (6, 3, 1)"],
        ),
        (lambda x: x.requires_grad_(), ["x: requires_grad False -> True"]),
        (lambda x: setattr(x, "tag", 1), ["x.tag: was added"]),
        (lambda x: setattr(x, "data", torch.zeros(2, 3)), ["x: storage "]),
    ],
    ids=["t_", "unsqueeze_", "requires_grad_", "attribute", "data"],
)
def test_flags(change, found):
    """Shape, strides, flags and Python attributes of a tensor."""
    said = changes(change, torch.zeros(2, 3))
    assert [line.partition(" 0x")[0] for line in said if "version" not in line] == [
        line.strip() for line in found
    ]


def test_graph():
    """A write to a tensor that requires a gradient changes its graph; a backward fills `.grad`."""
    weight = torch.ones(2, requires_grad=True)
    assert "x: grad_fn MulBackward0 -> AddBackward0" in changes(lambda x: x.add_(1), weight * 2)
    assert changes(lambda x: x.sum().backward(), weight) == ["x.grad: was added"]
    assert changes(lambda x: x.sum().backward(), weight)[0] == (
        "x.grad: values differ at 2 of 2 places, first at [0]: 1.0 -> 2.0"
    )


def write_all(*args, **kwargs):
    """Add one to every tensor given at top level."""
    for x in (*args, *kwargs.values()):
        x += 1


def test_paths_of_arguments():
    """By name; what has none, by position."""

    class Net(nn.Module):
        def forward(self, first, *rest, named, **more):
            write_all(first, *rest, named, **more)

    x = [torch.zeros(1) for _ in range(5)]
    found = changes(Net(), x[0], x[1], x[2], named=x[3], more=x[4])
    assert [line.partition(":")[0] for line in found if "values" in line] == [
        "first", "rest[0]", "rest[1]", "named", "more"
    ]  # fmt: skip
    found = changes(torch.add, x[0], x[1], out=x[2])  # no signature
    assert [line.partition(":")[0] for line in found if "values" in line] == ["out"]


@pytest.mark.parametrize(
    ("value", "write", "path"),
    [
        ({"a": [torch.zeros(1)]}, lambda v: v["a"][0].add_(1), "v['a'][0]"),
        ((1, (torch.zeros(1),)), lambda v: v[1][0].add_(1), "v[1][0]"),
        (Point(torch.zeros(1), [torch.zeros(1)]), lambda v: v.y[0].add_(1), "v.y[0]"),
        (Batch(torch.zeros(1)), lambda v: v.x.add_(1), "v.x"),
        (Slotted(torch.zeros(1)), lambda v: v.x.add_(1), "v.x"),
        (types.SimpleNamespace(a=Slotted({"k": torch.zeros(1)})), lambda v: v.a.x["k"].add_(1),
         "v.a.x['k']"),
        (collections.deque([torch.zeros(1)]), lambda v: v[0].add_(1), "v[0]"),
        (collections.UserDict(a=torch.zeros(1)), lambda v: v["a"].add_(1), "v.data['a']"),
        (nn.utils.rnn.pack_sequence([torch.zeros(1)]), lambda v: v.data.add_(1), "v.data"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_tensors_inside(value, write, path):
    """Everything reachable is compared, attributes of unknown objects too."""
    quiet(lambda v: None, value)
    found = changes(lambda v: write(v), value)
    assert found == [
        f"{path}: values differ at 1 of 1 places, first at [0]: 0.0 -> 1.0",
        f"{path}: version 0 -> 1",
    ]


@pytest.mark.parametrize(
    ("value", "change", "found"),
    [
        ({"a": 1}, lambda v: v.update(b=2), ["v['b']: was added"]),
        ({"a": 1, "b": 2}, lambda v: v.pop("a"), ["v['a']: was removed"]),
        ({"a": 1}, lambda v: v.update(a=1.0), ["v['a']: is another object"]),
        ({"a": 1000}, lambda v: v.update(a=int("1000")), None),
        ({"a": float("nan")}, lambda v: v.update(a=float("nan")), None),
        (
            {"a": torch.zeros(1)},
            lambda v: v.update(a=v["a"].clone()),
            ["v['a']: is another object"],
        ),
        (
            {"a": 1, "b": 2},
            lambda v: v.update(a=v.pop("a")),
            ["v: the order of its items has changed"],
        ),
        ([1, 2], lambda v: v.reverse(), ["v[0]: is another object", "v[1]: is another object"]),
        ([1, 2], lambda v: v.append(3), ["v[2]: was added"]),
        ({1, 2}, lambda v: v.remove(2), ["v{2}: was removed"]),
        (bytearray(b"a"), lambda v: v.extend(b"b"), ["v: bytes 61 -> 6162"]),
        (Batch(torch.zeros(1)), lambda v: setattr(v, "note", "x"), ["v.note: is another object"]),
        (Slotted(1), lambda v: setattr(v, "unset", 1), ["v.unset: was added"]),
    ],
)
def test_containers(value, change, found):
    """Keys, items, their order and attributes."""
    if found is None:
        quiet(change, value)
    else:
        assert changes(lambda v: change(v), value) == found


def test_arrays():
    """Values, shape and flags of numpy's arrays, and what an array of objects holds."""
    array = np.zeros((2, 3))
    array[0, 0] = np.nan
    quiet(np.sum, array)
    assert changes(lambda a: a.__setitem__((1, 2), 5), array) == [
        "a: values differ at 1 of 6 places, first at [1, 2]: 0.0 -> 5.0"
    ]
    assert changes(lambda a: a.setflags(write=False), array) == ["a: writeable True -> False"]
    inside = np.array([torch.zeros(1), None], dtype=object)
    assert changes(lambda a: a[0].add_(1), inside)[0].startswith("a.flat[0]: values differ")


def test_seen_once():
    """A tensor that is passed twice is named once, and cycles end."""
    x = torch.zeros(2)
    loop = {"x": x}
    loop["self"] = loop
    found = changes(lambda a, b: a.add_(1), x, loop)
    assert [line.partition(":")[0] for line in found] == ["a", "a"]


def test_modules_are_taken_as_they_are():
    """Their state is their own business, as are functions and classes."""

    class Net(nn.Module):
        def forward(self, norm, x):
            return norm(x)

    quiet(Net(), nn.BatchNorm1d(2), torch.randn(3, 2))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, device="meta"),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.zeros(1).expand(3),
        torch.zeros(0, 3),
        torch.eye(2).to_mkldnn(),
        torch.empty(2, dtype=torch.uint4),
    ],
    ids=["meta", "nested", "conj", "expanded", "empty", "mkldnn", "half a byte"],
)
def test_unusual_tensors(x):
    """They are looked at without being disturbed."""
    quiet(lambda x: None, x)


def test_writes_to_unusual_tensors():
    """They are compared as far as their numbers can be read."""
    ragged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert "values differ at 5 of 5 places, first at [0]: 0.0 -> 1.0" in changes(_add, ragged)[0]
    turned = torch.tensor([1 + 2j]).conj()
    assert "first at [0]: (1-2j) -> (2-2j)" in changes(_add, turned)[0]
    assert changes(_add, torch.zeros(2, device="meta")) == ["x: version 0 -> 1"]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors():
    """Their integers are compared."""
    x = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    quiet(torch.dequantize, x)
    assert changes(lambda x: x.fill_(0.5), x)[0] == (
        "x: values differ at 2 of 2 places, first at [0]: 10 -> 5"
    )


def _add(x):
    x.add_(1)


def test_inference_tensors():
    """They have no version; their values are compared."""
    with torch.inference_mode():
        x = torch.zeros(2)
        assert changes(lambda x: x.add_(1), x) == [
            "x: values differ at 2 of 2 places, first at [0]: 0.0 -> 1.0"
        ]
