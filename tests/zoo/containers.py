"""Containers as arguments and results."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.zoo.base import Edge, ramp


class Pair(NamedTuple):
    """A named tuple."""

    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Batch:
    """A dataclass."""

    image: torch.Tensor
    label: Any = None


@dataclasses.dataclass(frozen=True)
class FrozenBatch:
    """A frozen dataclass."""

    image: torch.Tensor
    label: Any = None


@dataclasses.dataclass(slots=True)
class SlottedBatch:
    """A dataclass without a `__dict__`."""

    image: torch.Tensor
    label: Any = None


class Features(dict):
    """A subclass of dict with attribute access."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class DictEntry(Edge):
    """A tensor in a dict is written."""

    writes = [("mul_", "batch['x']")]

    @staticmethod
    def inputs():
        return ({"x": ramp(3), "n": 3},)

    def forward(self, batch):
        batch["x"].mul_(2)
        return batch["x"] * batch["n"]


class DictKeyAdded(Edge):
    """A key is added to the caller's dict."""

    writes = [("__setitem__", "batch['sum']")]

    @staticmethod
    def inputs():
        return ({"x": ramp(3), "y": ramp(3)},)

    def forward(self, batch):
        batch["sum"] = batch["x"] + batch["y"]
        return batch["sum"] * 1, len(batch)


class DictKeyReplaced(Edge):
    """An entry of the caller's dict is replaced."""

    writes = [("__setitem__", "batch['x']")]

    @staticmethod
    def inputs():
        return ({"x": ramp(3)},)

    def forward(self, batch):
        batch["x"] = batch["x"] * 2
        return batch["x"] * 1


class DictKeyRemoved(Edge):
    """`pop`, `del` and `popitem`."""

    writes = [("pop", "batch['a']"), ("__delitem__", "batch['b']"), ("popitem", "batch")]

    @staticmethod
    def inputs():
        return ({"a": ramp(1), "b": ramp(2), "c": ramp(3)},)

    def forward(self, batch):
        a = batch.pop("a")
        del batch["b"]
        key, c = batch.popitem()
        return a * 1, c * 1, key, len(batch)


class DictUpdated(Edge):
    """`update`, `setdefault`, `|=` and `clear`."""

    writes = [
        ("update", "batch"), ("setdefault", "batch['z']"), ("__ior__", "batch"), ("clear", "batch"),
    ]  # fmt: skip

    @staticmethod
    def inputs():
        return ({"a": 1},)

    def forward(self, batch):
        batch.update(b=2)
        batch.setdefault("z", 3)
        batch |= {"d": 4}
        items = list(batch.items())
        batch.clear()
        return items, len(batch)


class ListChanged(Edge):
    """Every method that changes a list."""

    writes = [
        ("append", "xs"), ("extend", "xs"), ("insert", "xs"), ("__setitem__", "xs[0]"),
        ("__delitem__", "xs[1]"), ("pop", "xs"), ("reverse", "xs"), ("__iadd__", "xs"),
    ]  # fmt: skip

    @staticmethod
    def inputs():
        return ([ramp(1), 2, 3],)

    def forward(self, xs):
        xs.append(4)
        xs.extend([5])
        xs.insert(0, 6)
        xs[0] = 7
        del xs[1]
        last = xs.pop()
        xs.reverse()
        xs += [8]
        return list(xs), last


class Nested(Edge):
    """A tensor deep inside."""

    writes = [("add_", "states[1][0]['k'][2]")]

    @staticmethod
    def inputs():
        return ([(ramp(1),), ({"k": [1, 2, ramp(3)]}, ramp(2))],)

    def forward(self, states):
        states[1][0]["k"][2].add_(1)
        return states[1][0]["k"][2] * 1, states[1][1] * 1


class NamedTupleIn(Edge):
    """A named tuple stays one."""

    writes = [("mul_", "pair.first")]

    @staticmethod
    def inputs():
        return (Pair(ramp(2), ramp(3)),)

    def forward(self, pair):
        assert type(pair) is Pair
        pair.first.mul_(2)
        return Pair(pair.second * 1, pair.first * 1)


class DataclassIn(Edge):
    """A tensor of a dataclass is written, and a field replaced."""

    writes = [("mul_", "batch.image"), ("__setattr__", "batch.label")]

    @staticmethod
    def inputs():
        return (Batch(ramp(2), 1),)

    def forward(self, batch):
        assert isinstance(batch, Batch)
        batch.image.mul_(2)
        batch.label = batch.image.sum()
        return batch.image * 1, batch.label


class FrozenDataclassIn(Edge):
    """A frozen dataclass."""

    writes = [("mul_", "batch.image")]

    @staticmethod
    def inputs():
        return (FrozenBatch(ramp(2), 1),)

    def forward(self, batch):
        assert type(batch) is FrozenBatch
        batch.image.mul_(2)
        return batch.image * batch.label


class SlottedDataclassIn(Edge):
    """A dataclass with slots."""

    writes = [("mul_", "batch.image"), ("__setattr__", "batch.label")]

    @staticmethod
    def inputs():
        return (SlottedBatch(ramp(2), 1),)

    def forward(self, batch):
        batch.image.mul_(2)
        batch.label = 5
        return batch.image * batch.label


class DictSubclasses(Edge):
    """OrderedDict, defaultdict (reading a missing key adds it) and a user's own."""

    writes = [
        ("add_", "ordered['x']"), ("move_to_end", "ordered['x']"), ("__setitem__", "default['new']"),
        ("mul_", "features['x']"),
    ]  # fmt: skip

    @staticmethod
    def inputs():
        default = collections.defaultdict(list)
        default["old"].append(ramp(1))
        return (
            collections.OrderedDict(x=ramp(2), y=ramp(1)),
            default,
            Features(x=ramp(2)),
        )

    def forward(self, ordered, default, features):
        assert isinstance(ordered, collections.OrderedDict)
        ordered["x"].add_(1)
        ordered.move_to_end("x")
        default["new"].append(3)
        features.x.mul_(2)
        return list(ordered), ordered["x"] * 1, default["new"], features["x"] * 1


class Packed(Edge):
    """A PackedSequence."""

    writes = [("mul_", "packed.data")]

    @staticmethod
    def inputs():
        return (pack_padded_sequence(ramp(4, 2, 3), torch.tensor([4, 2])),)

    def forward(self, packed):
        packed.data.mul_(2)
        padded, lengths = pad_packed_sequence(packed)
        return padded, lengths


class SharedTensor(Edge):
    """One tensor in two places is one input: the write shows in both."""

    @staticmethod
    def inputs():
        x = ramp(3)
        return x, {"x": x}, [x]

    writes = [("add_", "x")]

    def forward(self, x, batch, xs):
        assert x is batch["x"]
        assert x is xs[0]
        x.add_(1)
        return batch["x"] * xs[0]


class SharedContainer(Edge):
    """One dict in two places is one stand-in."""

    writes = [("__setitem__", "a['k']")]

    @staticmethod
    def inputs():
        batch = {"x": ramp(3)}
        return batch, batch

    def forward(self, a, b):
        assert a is b
        a["k"] = 1
        return b["k"]


class HandsOutContainers(Edge):
    """Results in every kind of container, with inputs and views of them inside."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        x.mul_(2)
        return {
            "list": [x, x[1:]],
            "tuple": (x[:2], 3),
            "pair": Pair(x.view(2, 2), x * 1),
            "batch": Batch(x[0], {"deep": [x]}),
            "frozen": FrozenBatch(x[1]),
            "slots": SlottedBatch(x[2]),
            "features": Features(x=x),
            "ordered": collections.OrderedDict(x=x[3]),
        }


class CallersContainerChanged(Edge):
    """The module hands out the caller's dict with a change of its own in it."""

    writes = [("__setitem__", "batch['y']")]

    @staticmethod
    def inputs():
        return ({"x": ramp(2)},)

    def forward(self, batch):
        batch["y"] = batch["x"] * 2
        return batch
