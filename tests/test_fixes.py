"""Advice on how to say the same without writing an argument."""

from __future__ import annotations

import copy
import dataclasses
import functools

import pytest
import torch

from safemodule._fixes import fixes

LAST = (
    'if the caller is meant to see it, x: Mutable[Tensor], or mutable=("x",)',
    'mode="copy": the write goes to a copy, the caller\'s tensor stays as it is',
)
INPLACE_NAMES = sorted(
    name for name in dir(torch.Tensor) if name.endswith("_") and not name.endswith("__")
)


@pytest.mark.parametrize(
    ("op", "best"),
    [
        ("add_", "x = x + ..."),
        ("sub_", "x = x - ..."),
        ("mul_", "x = x * ..."),
        ("div_", "x = x / ..."),
        ("bitwise_or_", "x = x | ..."),
        ("__iadd__", "x = x + ..."),
        ("__imatmul__", "x = x @ ..."),
        ("__ior__", "x = x | ..."),
        ("__ilshift__", "x = x << ..."),
        ("clamp_", "x = x.clamp(...)"),
        ("scatter_", "x = x.scatter(...)"),
        ("index_fill_", "x = x.index_fill(...)"),
        ("masked_fill_", "x = x.masked_fill(...)"),
        ("relu_", "x = x.relu(...)"),
        ("leaky_relu_", "x = torch.nn.functional.leaky_relu(x, ...)"),
        ("copy_", "x = value.to(x).expand_as(x)"),
        ("fill_", "x = torch.full_like(x, value)"),
        ("zero_", "x = torch.zeros_like(x)"),
        ("set_", "x = other"),
        ("resize_", "x = x.new_empty(shape)"),
        ("add (out=)", "without out=: x = torch.add(...)"),
        ("aten::add.out (out=)", "without out=: x = torch.add(...)"),
        ("relu (inplace=True)", "inplace=False in relu"),
        ("data", "x = value, where it says x.data = value"),
        (".data", "x = value, where it says x.data = value"),
        ("data.__set__", "x = value, where it says x.data = value"),
        ("real", "x = torch.complex(value, x.imag)"),
        ("batch_norm", "training=False, if the running statistics are not meant to change"),
        ("embedding (max_norm=)", "without max_norm: x = torch.renorm(x, p=2, dim=0, maxnorm=...)"),
        ("__setitem__", "x = x.clone() before the write"),
        ("fill_diagonal_", "x = x.clone() before the write"),
        ("_foreach_add_", "x = x.clone() before the write"),
        ("never heard of", "x = x.clone() before the write"),
        ("", "x = x.clone() before the write"),
    ],
)
def test_best_fix(op, best):
    """The first is the shortest way to say the same."""
    advice = fixes(op, "x")
    assert advice[0] == best
    assert "x = x.clone() before the write" in advice
    assert advice[-2:] == LAST


@pytest.mark.parametrize(
    "op", ["aten::add_", "aten::add_.Tensor", "aten.add_.Scalar", "torch.ops.aten.add_.default",
           "Tensor.add_", "torch.Tensor.add_", "add_ (x)"],
)  # fmt: skip
def test_spellings_of_an_op(op):
    """A schema's name and a method's name get the same advice."""
    assert fixes(op, "x") == fixes("add_", "x")


def test_setitem_offers_three_ways():
    """By condition, by mask, by indices."""
    assert fixes("__setitem__", "x") == (
        "x = x.clone() before the write",
        "x = torch.where(condition, value, x)",
        "x = x.masked_fill(condition, value)",
        "x = x.index_put((indices,), value)",
        *LAST,
    )


def test_every_inplace_method_gets_advice_that_exists():
    """What is called in the advice is there to be called."""
    called = set()
    for name in INPLACE_NAMES:
        best = fixes(name, "x")[0]
        assert best.startswith("x = ")
        root, *path = best.removeprefix("x = ").partition("(")[0].split(".")
        if path and "(" in best:
            owner = torch if root == "torch" else torch.Tensor
            assert callable(functools.reduce(getattr, path, owner))
            called.add(path[-1])
    assert {"clamp", "scatter_reduce", "empty_like", "zeros_like", "clone"} <= called
    assert len(called) > 100


@pytest.mark.parametrize(
    ("op", "statement"),
    [
        ("copy_", "x.copy_(value)"),
        ("fill_", "x.fill_(2)"),
        ("zero_", "x.zero_()"),
        ("uniform_", "x.uniform_()"),
        ("bernoulli_", "x.bernoulli_(p)"),
        ("random_", "x.random_(low, high)"),
        ("exponential_", "x.exponential_()"),
        ("normal_", "x.normal_(mean, std)"),
        ("__iadd__", "x += 2"),
        ("__ifloordiv__", "x //= 2"),
        ("__imod__", "x %= 2"),
        ("pow_", "x.pow_(2)"),
        ("clamp_", "x.clamp_(2)"),
    ],
)
def test_advice_computes_the_same(op, statement):
    """The advice is run beside the write, with the same random numbers."""
    names = {"torch": torch, "p": 0.5, "low": 1, "high": 9, "mean": 1.0, "std": 3.0}
    value = torch.tensor(2) if op == "copy_" else 2
    written = names | {"x": torch.arange(6.0).view(2, 3), "value": value}
    advised = written | {"x": written["x"].clone()}
    arguments = "" if op == "exponential_" else "2"
    torch.manual_seed(0)
    exec(statement, written)
    torch.manual_seed(0)
    exec(fixes(op, "x")[0].replace("...", arguments), advised)
    torch.testing.assert_close(advised["x"], written["x"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("argument", "best", "declare"),
    [
        (
            "batch['mask']",
            "mask = batch['mask'] + ...",
            'batch: Mutable[...], or mutable=("batch",)',
        ),
        ("states[1][0]", "x = states[1][0] + ...", 'states: Mutable[...], or mutable=("states",)'),
        ("out.logits", "logits = out.logits + ...", 'out: Mutable[...], or mutable=("out",)'),
        ("f(t)", "x = f(t) + ...", 'f: Mutable[...], or mutable=("f",)'),
        ("d['a b']", "x = d['a b'] + ...", 'd: Mutable[...], or mutable=("d",)'),
    ],
)
def test_path_of_an_argument(argument, best, declare):
    """The new value gets a name of its own: putting it back would write the caller's container."""
    advice = fixes("add_", argument)
    assert advice[0] == best
    assert advice[-2] == f"if the caller is meant to see it, {declare}"


@pytest.mark.parametrize("argument", ["<frozen at line 7>", ""])
def test_tensor_without_a_name(argument):
    """There is no parameter to declare; the mode still helps."""
    assert fixes("add_", argument) == ("x = x + ...", "x = x.clone() before the write", LAST[1])


def test_tensor_that_is_no_argument():
    """There is nothing to declare, and no mode to choose."""
    assert fixes("add_", "x", declarable=False) == ("x = x + ...", "x = x.clone() before the write")


@dataclasses.dataclass
class Config:
    """A container with fields."""

    scale: int = 1


@pytest.mark.parametrize(
    ("op", "argument", "statement", "container", "value"),
    [
        ("__setitem__", "c['a']", "c['a'] = value", {"a": 1, "b": 2}, 3),
        ("__setitem__", "c['z']", "c['z'] = value", {"a": 1, "b": 2}, 3),
        ("setdefault", "c['z']", "c.setdefault('z', value)", {"a": 1}, 3),
        ("setdefault", "c['a']", "c.setdefault('a', value)", {"a": 1}, 3),
        ("update", "c", "c.update(other)", {"a": 1}, None),
        ("__ior__", "c", "c |= other", {"a": 1}, None),
        ("__delitem__", "c['a']", "del c['a']", {"a": 1, "b": 2}, None),
        ("append", "c", "c.append(value)", [1, 2], 3),
        ("extend", "c", "c.extend(values)", [1, 2], None),
        ("__iadd__", "c", "c += values", [1, 2], None),
        ("__imul__", "c", "c *= n", [1, 2], None),
        ("insert", "c", "c.insert(i, value)", [1, 2], 3),
        ("sort", "c", "c.sort()", [2, 1], None),
        ("reverse", "c", "c.reverse()", [1, 2], None),
        ("__setattr__", "c.scale", "c.scale = value", Config(), 3),
        # No one-line form: the copy first, then the statement as it was.
        ("__setitem__", "c[0]", "c[0] = value", [1, 2], 3),
        ("clear", "c", "c.clear()", {"a": 1}, None),
        ("popitem", "c", "c.popitem()", {"a": 1}, None),
        ("remove", "c", "c.remove(1)", [1, 2], None),
    ],
)
def test_container_advice_computes_the_same(op, argument, statement, container, value):
    """The advice gives the changed container and leaves the caller's as it was."""
    names = {
        "copy": copy, "dataclasses": dataclasses, "value": value, "other": {"a": 9, "q": 8},
        "values": [8, 9], "n": 2, "i": 1,
    }  # fmt: skip
    written = names | {"c": copy.copy(container)}
    exec(statement, written)
    advised = names | {"c": container}
    before = copy.copy(container)
    advice = fixes(op, argument, "container")
    best = advice[0].removesuffix(" before the change")
    exec(best, advised)
    if best != advice[0]:
        exec(statement, advised)
    assert advised["c"] == written["c"]
    assert container == before
    assert (
        advice[-1]
        == 'mode="copy": the write goes to a copy, the caller\'s container stays as it is'
    )
    assert advice[-2].endswith('c: Mutable[...], or mutable=("c",)')


def test_pop_is_a_read():
    """Mostly the value is wanted, not its absence."""
    assert fixes("pop", "batch['images']", "container")[:3] == (
        "read batch['images'] and leave it in",
        "batch = {key: item for key, item in batch.items() if key != 'images'}",
        "batch = dict(batch) before the change",
    )


def test_nested_container():
    """The inner one is rebuilt under a name of its own."""
    assert fixes("__setitem__", "batch['meta']['size']", "container")[:2] == (
        "meta = {**batch['meta'], 'size': value}",
        "meta = dict(batch['meta']) before the change",
    )


@pytest.mark.parametrize("kind", ["tensor", "container"])
@pytest.mark.parametrize("argument", ["x", "x['k']", "x[0]", "x.k"])
def test_never_more_than_six(argument, kind):
    """An error text has ten lines at most, four of them its own."""
    for op in [*INPLACE_NAMES, "__setitem__", "pop", "batch_norm", "x (out=)"]:
        advice = fixes(op, argument, kind)
        assert len(set(advice)) == len(advice) <= 6
        assert not any("\n" in line or "{y}" in line for line in advice)
