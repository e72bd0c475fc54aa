"""Containers on the way in: what stands in for the caller's, and how it behaves."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import pickle
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from safemodule import InputMutationError, freeze_inputs, mode, record
from tests.helpers import Caller, assert_plain, forward_of


def writes_of(function, *args):
    """Return op and path of each record of a call."""
    caller = Caller(*args)
    with record() as log:
        freeze_inputs(function)(*args)
    caller.check()
    return [(m.op, m.argument) for m in log]


# -- every way to change one -----------------------------------------------------------------------

DICT = {
    "__setitem__": (lambda d: d.__setitem__("a", 9), "b['a']"),
    "new key": (lambda d: d.__setitem__("new", 9), "b['new']"),
    "__delitem__": (lambda d: d.__delitem__("a"), "b['a']"),
    "pop": (lambda d: d.pop("a"), "b['a']"),
    "pop with a default": (lambda d: d.pop("a", None), "b['a']"),
    "popitem": (lambda d: d.popitem(), "b"),
    "update": (lambda d: d.update({"a": 9}), "b"),
    "update by keyword": (lambda d: d.update(a=9), "b"),
    "update by pairs": (lambda d: d.update([("a", 9)]), "b"),
    "clear": (lambda d: d.clear(), "b"),
    "setdefault": (lambda d: d.setdefault("new", 9), "b['new']"),
    "__ior__": (lambda d: d.__ior__({"a": 9}), "b"),
}
LIST = {
    "__setitem__": (lambda x: x.__setitem__(0, 9), "b[0]"),
    "negative index": (lambda x: x.__setitem__(-1, 9), "b[-1]"),
    "slice": (lambda x: x.__setitem__(slice(0, 2), [9]), "b[slice(0, 2, None)]"),
    "__delitem__": (lambda x: x.__delitem__(0), "b[0]"),
    "append": (lambda x: x.append(9), "b"),
    "extend": (lambda x: x.extend([9]), "b"),
    "insert": (lambda x: x.insert(0, 9), "b"),
    "remove": (lambda x: x.remove(1), "b"),
    "pop": (lambda x: x.pop(), "b"),
    "clear": (lambda x: x.clear(), "b"),
    "sort": (lambda x: x.sort(reverse=True), "b"),
    "reverse": (lambda x: x.reverse(), "b"),
    "__iadd__": (lambda x: x.__iadd__([9]), "b"),
    "__imul__": (lambda x: x.__imul__(2), "b"),
}
# Where the name of a change is not that of the method.
OPS = dict.fromkeys(("new key", "new key ordered", "negative index", "slice"), "__setitem__")
CHANGES = [
    *(({"a": 1, "z": 2}, name, *change) for name, change in DICT.items()),
    *(
        (collections.OrderedDict(a=1, z=2), f"{name} ordered", *change)
        for name, change in DICT.items()
    ),
    (collections.OrderedDict(a=1, z=2), "move_to_end", lambda d: d.move_to_end("a"), "b['a']"),
    *(([1, 2, 3], name, *change) for name, change in LIST.items()),
]


@pytest.mark.parametrize(
    ("value", "name", "change", "path"),
    CHANGES,
    ids=[f"{type(c[0]).__name__} {c[1]}" for c in CHANGES],
)
def test_every_change(value, name, change, path):
    """It happens inside, as to a plain container; it is on record once; strict refuses it."""
    inside = []

    def forward(b):
        inside.append(change(b))
        inside.append(copy.copy(b))

    ((op, argument),) = writes_of(forward, value)
    expected = copy.copy(value)
    result = change(expected)
    assert op == OPS.get(name, name.split()[0])
    assert argument == path
    assert inside[1] == expected
    assert list(inside[1]) == list(expected)
    if inside[0] is not None and type(result) is not type(value):
        assert inside[0] == result
    caller = Caller(value)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        freeze_inputs(lambda b: change(b))(value)
    caller.check()
    assert caught.value.mutation.kind == "container"


def test_reading_is_no_change():
    """Whatever one can ask of a container."""

    def forward(d, x):
        return [
            d["a"], d.get("q"), list(d), list(d.items()), list(d.values()), len(d), "a" in d, bool(d),
            d == {"a": 1, "z": 2}, d | {"q": 1}, {**d}, dict(d), d.copy(), sorted(d), str(d), repr(d),
            list(reversed(d)), json.dumps(d), max(d, key=d.get),
            x[0], x[-1], x[1:], list(x), len(x), 2 in x, x.index(2), x.count(1), [*x, 4], x.__add__([4]), x * 2, x == [1, 2, 3],
            sorted(x), str(x), repr(x), x.copy(), sum(x), [*x], tuple(x), list(map(str, x)), x < [2],
        ]  # fmt: skip

    args = {"a": 1, "z": 2}, [1, 2, 3]
    assert writes_of(forward, *args) == []
    with mode("strict"):
        assert freeze_inputs(forward)(*args) == forward(*args)


def test_setdefault_of_a_key_that_is_there():
    """Gives its value."""

    def forward(d):
        return d.setdefault("a", 5)

    d = {"a": 1}
    assert freeze_inputs(forward)(d) == 1
    assert d == {"a": 1}


# -- what stands in --------------------------------------------------------------------------------


def test_it_is_what_it_stands_for():
    """Type checks, equality, formatting, JSON, copies."""

    def forward(d, x):
        assert isinstance(d, dict)
        assert isinstance(x, list)
        assert d.__class__ is dict
        assert x.__class__ is list
        assert d == {"k": [1, 2]}
        assert x == [1, {"n": None}]
        assert json.dumps([d, x]) == '[{"k": [1, 2]}, [1, {"n": null}]]'
        assert (repr(d), repr(x)) == ("{'k': [1, 2]}", "[1, {'n': None}]")
        assert f"{d} {x}" == "{'k': [1, 2]} [1, {'n': None}]"
        match d:
            case {"k": [1, *rest]}:
                assert rest == [2]
            case _:
                raise AssertionError
        return True

    assert forward_of(forward)({"k": [1, 2]}, [1, {"n": None}])


def test_copies_are_the_modules_own():
    """`copy`, `deepcopy`, pickle and comprehension give plain containers, free to change."""
    seen = []

    def forward(d):
        for other in (
            d.copy(), copy.copy(d), copy.deepcopy(d), pickle.loads(pickle.dumps(d)), dict(d), {**d},
            {k: v for k, v in d.items() if k}, d | {},
        ):  # fmt: skip
            assert type(other) is dict
            other["new"] = 1
            seen.append(len(other))
        return len(d)

    assert writes_of(forward, {"a": 1, "x": torch.zeros(1)}) == []
    assert seen == [3] * 8


def test_unpacking_as_keywords():
    """`f(**batch)` and `f(*items)`, as Hugging Face models are called."""

    def inner(a, b):
        return a + b

    x = torch.ones(1)
    out = freeze_inputs(lambda d, t: inner(**d) + inner(*t))({"a": x, "b": x}, [x, x])
    assert out.tolist() == [4]


@dataclasses.dataclass
class Batch:
    """A dataclass with behaviour."""

    x: Any
    n: int = 0
    extra: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.made = True

    def doubled(self):
        return self.x * 2

    @property
    def size(self):
        return len(self.x)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen one."""

    x: Any
    n: int = 0

    def __post_init__(self):
        assert isinstance(self.n, int)


class Point(NamedTuple):
    """A named tuple with a method."""

    x: Any
    y: Any = None

    def total(self):
        return self.x + self.y


def test_dataclass():
    """Methods, properties, `replace`, `asdict`, equality and isinstance work."""

    def forward(b):
        assert isinstance(b, Batch)
        assert b.__class__ is Batch
        assert (b.size, b.made, b.n) == (2, True, 0)
        assert b.doubled().tolist() == [2, 2]
        other = dataclasses.replace(b, n=5)
        assert (type(other), other.n, b.n) == (Batch, 5, 0)
        assert set(dataclasses.asdict(b)) == {"x", "n", "extra"}
        assert [f.name for f in dataclasses.fields(b)] == ["x", "n", "extra"]
        b.x.add_(1)
        b.n = 7
        b.other = 1
        b.extra["k"] = 1
        del b.made
        return b

    batch = Batch(torch.ones(2))
    assert writes_of(forward, batch) == [
        ("add_", "b.x"),
        ("__setattr__", "b.n"),
        ("__setattr__", "b.other"),
        ("__setitem__", "b.extra['k']"),
        ("__delattr__", "b.made"),
    ]
    out = freeze_inputs(forward)(batch)
    assert type(out) is Batch
    assert out is not batch
    assert (out.n, out.x.tolist(), out.extra) == (7, [2, 2], {"k": 1})
    assert_plain(out)


def test_frozen_dataclass():
    """It arrives as its own type, and refuses changes as ever."""

    def forward(b):
        assert type(b) is Frozen
        with pytest.raises(dataclasses.FrozenInstanceError):
            b.n = 1
        b.x.add_(1)
        return b

    batch = Frozen(torch.ones(2))
    assert writes_of(forward, batch) == [("add_", "b.x")]
    assert freeze_inputs(lambda b: b)(batch) is batch


def test_named_tuple():
    """Its type, methods and `_replace`."""

    def forward(p):
        assert type(p) is Point
        p.x.add_(1)
        q = p._replace(y=torch.ones(1))
        return q, p.total()

    point = Point(torch.zeros(1), torch.zeros(1))
    assert writes_of(forward, point) == [("add_", "p.x")]
    q, total = freeze_inputs(forward)(point)
    assert type(q) is Point
    assert (q.x.tolist(), total.tolist()) == ([1], [1])


class Attributes(dict):
    """A dict whose items are attributes too, as a ModelOutput or BatchEncoding."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = 0

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, key, value):
        self.__dict__["calls"] = self.calls + 1
        super().__setitem__(key, value)

    def to(self, dtype):
        return type(self)({k: v.to(dtype) for k, v in self.items()})


def test_dict_subclass():
    """Overridden methods, attributes and constructors work."""

    def forward(b):
        assert isinstance(b, Attributes)
        assert b.x is b["x"]
        assert b.calls == 0
        b["y"] = 1
        assert (b.calls, b.y) == (1, 1)
        del b["y"]
        other = b.to(torch.float64)
        other["k"] = 1
        return other, b

    batch = Attributes(x=torch.zeros(1))
    assert writes_of(forward, batch) == [("__setitem__", "b['y']"), ("__delitem__", "b['y']")]
    other, out = freeze_inputs(forward)(batch)
    assert type(other) is Attributes
    assert type(out) is Attributes
    assert other["x"].dtype is torch.float64
    assert batch.calls == 0


class Stack(list):
    """A list with a method of its own that changes it."""

    def push(self, item):
        self.append(item)
        return self


def test_list_subclass():
    """A method that changes it through another one is one change."""

    def forward(s):
        assert isinstance(s, Stack)
        return s.push(3)

    stack = Stack([1])
    assert writes_of(forward, stack) == [("append", "s")]
    out = freeze_inputs(forward)(stack)
    assert type(out) is Stack
    assert out == [1, 3]
    assert stack == [1]


def test_user_dict_and_user_list():
    """`collections.UserDict` and `UserList`."""

    def forward(d, x):
        d["x"].add_(1)
        x[0].add_(1)
        d["new"] = 1
        x.append(2)
        return d, x

    d = collections.UserDict(x=torch.zeros(1))
    x = collections.UserList([torch.zeros(1)])
    caller = Caller(d, x)
    out_d, out_x = freeze_inputs(forward)(d, x)
    caller.check()
    assert (out_d["x"].tolist(), out_d["new"], out_x[0].tolist(), out_x[1]) == ([1], 1, [1], 2)
    assert_plain([out_d, out_x])


def test_defaultdict_counter_chainmap():
    """What the standard library has more."""
    default = collections.defaultdict(lambda: 5, a=1)
    counter = collections.Counter("aab")

    def forward(d, c):
        value = d["missing"]
        c["a"] += 1
        c.update("b")
        return value, c["a"], c["b"], c["zzz"], c.most_common(1)

    assert freeze_inputs(forward)(default, counter) == (5, 3, 2, 0, [("a", 3)])
    assert dict(default) == {"a": 1}
    assert counter == {"a": 2, "b": 1}


def test_packed_sequence():
    """Unwritten it is the same object; a write to its data is one to `x.data`."""
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    rnn = torch.nn.GRU(2, 3)

    def forward(x):
        out, h = rnn(x)
        x.data.mul_(2)
        return out, h, pad_packed_sequence(x)[0].sum()

    assert writes_of(forward, packed) == [("mul_", "x.data")]
    out, _, total = freeze_inputs(forward)(packed)
    assert type(out) is PackedSequence
    assert total == 16
    assert freeze_inputs(lambda x: x)(packed) is packed
    assert_plain(out)


DEQUE = {
    "append": (lambda d: d.append(9), "d"),
    "appendleft": (lambda d: d.appendleft(9), "d"),
    "extend": (lambda d: d.extend([9]), "d"),
    "extendleft": (lambda d: d.extendleft([9]), "d"),
    "insert": (lambda d: d.insert(0, 9), "d"),
    "pop": (lambda d: d.pop(), "d"),
    "popleft": (lambda d: d.popleft(), "d"),
    "remove": (lambda d: d.remove(1), "d"),
    "rotate": (lambda d: d.rotate(1), "d"),
    "reverse": (lambda d: d.reverse(), "d"),
    "clear": (lambda d: d.clear(), "d"),
    "__setitem__": (lambda d: d.__setitem__(0, 9), "d[0]"),
    "__delitem__": (lambda d: d.__delitem__(0), "d[0]"),
    "__iadd__": (lambda d: d.__iadd__([9]), "d"),
}


@pytest.mark.parametrize("op", DEQUE)
def test_deque(op):
    """A deque, with a tensor inside or without, is guarded as a list is."""
    change, path = DEQUE[op]
    for items in ([1, 2, 3], [1, torch.zeros(1)]):
        if op == "remove" and len(items) == 2:
            continue  # compares tensors
        value = collections.deque(items, maxlen=5)
        sizes = []

        def forward(d, sizes=sizes):
            assert isinstance(d, collections.deque)
            assert d.maxlen == 5
            change(d)
            sizes.append(len(d))
            return d

        assert writes_of(forward, value) == [(op, path)]
        expected = value.copy()
        change(expected)
        assert sizes == [len(expected)]
        out = freeze_inputs(forward)(value)
        assert type(out) is collections.deque
        assert out.maxlen == 5
        assert_plain(out)
        with mode("strict"), pytest.raises(InputMutationError):
            freeze_inputs(forward)(value)
    assert freeze_inputs(lambda d: d)(value) is value


class Registered:
    """A class that only pytree knows."""

    def __init__(self, x, tag):
        self.x, self.tag = x, tag


pytree.register_pytree_node(
    Registered, lambda r: ([r.x], r.tag), lambda items, tag: Registered(items[0], tag)
)


def test_registered_with_pytree():
    """Rebuilt by its own functions."""

    def forward(r):
        assert type(r) is Registered
        assert r.tag == "t"
        r.x.add_(1)
        return r

    thing = Registered(torch.zeros(1), "t")
    with record() as log:
        out = freeze_inputs(forward)(thing)
    assert thing.x.tolist() == [0]
    assert (out.x.tolist(), out.tag) == ([1], "t")
    assert [m.op for m in log] == ["add_"]
    assert freeze_inputs(lambda r: r)(thing) is thing


def test_registered_with_pytree_and_without_a_tensor():
    """It is the module's own all the same: a field set inside does not reach the caller."""

    def forward(r):
        r.x = 5
        return r.x

    thing = Registered(1, "t")
    assert freeze_inputs(forward)(thing) == 5
    assert thing.x == 1


def test_guarded_containers_are_pytrees():
    """`tree_map` inside forward walks what stands in."""

    def forward(d):
        return pytree.tree_map(lambda t: t * 2, d)

    out = freeze_inputs(forward)({"a": [torch.ones(1), (torch.ones(1),)], "b": Point(1, 2)})
    assert out["a"][1][0].tolist() == [2]
    assert out["b"] == Point(2, 4)
    assert_plain(out)


def test_self_reference():
    """A list that contains itself."""
    loop: list = [torch.zeros(1)]
    loop.append(loop)

    def forward(x):
        assert x[1] is x
        x[0].add_(1)
        return x[0]

    assert freeze_inputs(forward)(loop).tolist() == [1]
    assert loop[0].tolist() == [0]


def test_deep_nesting():
    """A hundred levels."""
    value: Any = torch.zeros(1)
    for _ in range(100):
        value = [value]

    def forward(x):
        while isinstance(x, list):
            (x,) = x
        x.add_(1)
        return x

    with record() as log:
        assert freeze_inputs(forward)(value).tolist() == [1]
    assert log[0].argument == "x" + "[0]" * 100


def test_empty_containers():
    """Nothing to guard, and still guarded."""

    def forward(d, x, t):
        d["k"] = 1
        x.append(1)
        return len(d), len(x), t

    assert freeze_inputs(forward)({}, [], ()) == (1, 1, ())


def test_keys_of_every_kind():
    """Paths show the key as Python would."""

    def forward(d):
        for value in d.values():
            value.add_(1)

    keys = ["s", 1, (1, "a"), None, 2.5, torch.float32]
    with record() as log:
        freeze_inputs(forward)({key: torch.zeros(1) for key in keys})
    assert [m.argument for m in log] == [f"d[{key!r}]" for key in keys]


def test_sets_and_unknown_objects_pass_through():
    """They are the caller's objects."""
    thing, items = object(), {1, 2}

    def forward(a, b, c):
        return a is thing, b is items, c[0] is thing

    assert freeze_inputs(forward)(thing, items, (thing,)) == (True, True, True)


def test_container_kept_by_the_module():
    """A stand-in that outlives the call is plain to use, and still not the caller's."""
    kept = []
    batch = {"x": torch.zeros(1)}
    freeze_inputs(lambda b: kept.append(b))(batch)
    kept[0]["new"] = 1
    kept[0]["x"].add_(1)
    assert list(batch) == ["x"]
    assert batch["x"].tolist() == [0]


def test_nested_guarded_calls_hand_containers_on():
    """An inner call's change is the inner's: the outer's container is as it was."""

    @freeze_inputs
    def inner(b):
        b["new"] = 1
        b["x"].add_(1)
        return b

    @freeze_inputs
    def outer(b):
        out = inner(b)
        assert list(b) == ["x"]
        assert b["x"].tolist() == [0]
        assert out["x"].tolist() == [1]
        b["y"] = 2
        return out, b

    batch = {"x": torch.zeros(1)}
    caller = Caller(batch)
    with record() as log:
        out, mine = outer(batch)
    caller.check()
    assert list(out) == ["x", "new"]
    assert list(mine) == ["x", "y"]
    assert [(m.op, m.argument) for m in log] == [
        ("__setitem__", "b['new']"),
        ("add_", "b['x']"),
        ("__setitem__", "b['y']"),
    ]
    assert_plain([out, mine])


def test_an_inner_call_returns_the_outers_container():
    """Unchanged, it is the very same one."""

    @freeze_inputs
    def inner(b):
        return b

    @freeze_inputs
    def outer(b):
        assert inner(b) is b
        return b

    batch = {"x": torch.zeros(1)}
    assert outer(batch) is batch


def test_no_new_classes_per_call():
    """Stand-in classes are made once for each class."""
    seen = []
    for _ in range(3):
        freeze_inputs(lambda b, c: seen.append((type(b), type(c))))(Batch(1), {})
    assert len(set(seen)) == 1


def test_init_subclass_registries_hear_nothing():
    """A user's `__init_subclass__` is not called for our classes."""
    heard = []

    class Base(dict):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            heard.append(cls.__name__)

    class Child(Base):
        pass

    freeze_inputs(lambda b: b)(Child(a=1))
    freeze_inputs(lambda b: b)(Base(a=1))
    assert heard == ["Child"]


def test_results_of_torch_as_arguments():
    """What `torch.max` returns comes in as the same type."""
    pair = torch.max(torch.zeros(2, 2), 0)

    def forward(pair):
        pair.values.add_(1)
        return pair.values, type(pair)

    values, kind = forward_of(forward)(pair)
    assert (values.tolist(), pair.values.tolist()) == ([1, 1], [0, 0])
    assert kind is type(pair)
    assert forward_of(lambda pair: pair)(pair) is pair


def test_slots_of_a_dict():
    """One that is not set stays so."""

    class Slotted(dict):
        __slots__ = ("tag", "unset")

    given = Slotted(x=torch.zeros(1))
    given.tag = torch.zeros(1)

    def forward(d):
        assert not hasattr(d, "unset")
        return d["x"].add_(1), d.tag.add_(1)

    out = forward_of(forward)(given)
    assert [t.item() for t in out] == [1, 1]
    assert (given["x"].item(), given.tag.item()) == (0, 0)


def test_registered_twice():
    """A class that its parent registers with pytree already is left as it is."""

    class Parent(dict):
        def __init_subclass__(cls):
            pytree.register_pytree_node(
                cls,
                lambda d: (list(d.values()), list(d)),
                lambda v, k: dict(zip(k, v, strict=True)),
            )

    class Child(Parent):
        pass

    def forward(d):
        return pytree.tree_map(lambda t: t.add_(1), d)

    given = Child(x=torch.zeros(1))
    assert forward_of(forward)(given)["x"].item() == 1
    assert given["x"].item() == 0


def test_changes_in_mode_off():
    """What is given to the forward stays its own; it is not on record."""

    def forward(d):
        with mode("off"):
            d["x"] = 1
            del d["y"]
        return dict(d)

    given = {"x": 0, "y": 0}
    with record() as log:
        assert forward_of(forward)(given) == {"x": 1}
    assert given == {"x": 0, "y": 0}
    assert list(log) == []
