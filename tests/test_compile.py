"""A guarded call as a compiler sees it: which arguments are copies, and what comes back."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch

from safemodule import _compile, freeze_inputs, set_mode
from safemodule._compile import compiled_call, compiled_tensor
from safemodule._compile_tensor import CompiledHandle
from safemodule._guarded import PLAN


class Pair(NamedTuple):
    """A namedtuple."""

    x: torch.Tensor
    y: object


@dataclasses.dataclass
class Result:
    """A dataclass."""

    x: torch.Tensor
    note: str = ""


@pytest.fixture(params=[False, True], ids=["exported", "compiled"])
def handles(request, monkeypatch):
    """Run as `torch.export` does, and as `torch.compile` does."""
    monkeypatch.setattr(_compile, "_with_handles", lambda: request.param)
    return request.param


def call(function, *args, options=(), **kwargs):
    """Call a guarded function as a compiler sees it called."""
    plan = getattr(freeze_inputs(**dict(options))(function), PLAN)
    return compiled_call(function, plan, args, kwargs)


def test_arguments_are_copies(handles):
    """By position and by name, in containers of every kind; the same tensor twice is one."""
    x, y = torch.zeros(2), torch.zeros(2)

    def forward(a, *rest, b, **more):
        assert a is rest[0] is more["again"]
        for tensor in (a, rest[1]["k"], rest[2][0], rest[3][0], rest[4].y["k"], b[0]):
            tensor.add_(1)
        assert type(rest[1]) is collections.OrderedDict
        assert type(rest[4]) is Pair
        return a, rest[1]["k"]

    out = call(
        forward,
        *(x, x, collections.OrderedDict(k=y), [y], (y, 1), Pair(x, {"k": y})),
        b=[y],
        again=x,
    )
    assert x.tolist() == y.tolist() == [0, 0]
    assert [t.tolist() for t in out] == [[1, 1], [5, 5]]
    assert {type(t) for t in out} == {torch.Tensor}


def test_mutable_arguments(handles):
    """They are the caller's own."""
    x, y, z = torch.zeros(1), torch.zeros(1), torch.zeros(1)

    def forward(x, *, y, **more):
        x.add_(1), y.add_(1), more["z"].add_(1)

    call(forward, x, y=y, z=z, options={"mutable": ("y", "more")})
    assert (x.item(), y.item(), z.item()) == (0, 1, 1)


def test_mode_off(handles):
    """Nothing is copied: that is compiled in."""
    x = torch.zeros(1)
    assert call(lambda x: x.add_(1), x, options={"mode": "off"}) is x
    set_mode("off")
    try:
        assert call(lambda x: x.add_(1), x) is x
    finally:
        set_mode(None)
    assert x.tolist() == [2]


def test_results_are_plain(handles):
    """In every container that a handle may be put into; others come back as they are."""

    def forward(x):
        kept.append(x)
        return {
            "tuple": (x, 1),
            "pair": Pair(x, [x[0]]),
            "list": [x, "s"],
            "result": Result(x),
            "mine": other,
        }

    kept, other = [], [torch.ones(1), Result(torch.ones(1))]
    x = torch.zeros(2)
    out = call(forward, x)
    assert type(kept[0]) is (CompiledHandle if handles else torch.Tensor)
    found = [out["tuple"][0], out["pair"].x, out["pair"].y[0], out["list"][0], out["result"].x]
    assert {type(t) for t in found} == {torch.Tensor}
    assert type(out["pair"]) is Pair
    assert out["mine"] is other
    assert not any(t.data_ptr() == x.data_ptr() for t in found)


def test_frozen_tensor(handles):
    """`freeze` gives a copy, of the kind that the region has."""
    x = torch.zeros(2)
    t = compiled_tensor(x)
    assert type(t) is (CompiledHandle if handles else torch.Tensor)
    t.add_(1)
    assert x.tolist() == [0, 0]
