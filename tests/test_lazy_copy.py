"""Snapshots: independent of the caller in both directions, and lazy only where that is safe."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from safemodule import freeze_inputs
from safemodule._lazy_copy import may_share, snapshot
from tests.helpers import Caller, same

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")

KINDS = {
    "plain": lambda: torch.arange(6.0).reshape(2, 3).clone(),
    "leaf": lambda: torch.arange(6.0).requires_grad_(),
    "non-leaf": lambda: torch.arange(6.0).requires_grad_() * 2,
    "slice": lambda: torch.arange(6.0)[2:4],
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "channels_last": lambda: torch.rand(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "empty": lambda: torch.zeros(0, 3),
    "scalar": lambda: torch.tensor(3.0),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j, 3j]),
    "complex leaf": lambda: torch.tensor([1 + 2j, 3j]).requires_grad_(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "from numpy": lambda: torch.from_numpy(np.arange(3.0)),
    "shared memory": lambda: torch.arange(3.0).share_memory_(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "inference": lambda: inference(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def inference():
    """Return an inference tensor."""
    with torch.inference_mode():
        return torch.arange(3.0)


def write(x):
    """Change every element."""
    with torch.inference_mode() if x.is_inference() else torch.no_grad():
        x.copy_(torch.ones(x.shape, dtype=torch.float32).to(x.dtype)) if not x.is_quantized else (
            x.copy_(torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8))
        )


def values(x):
    """Return the values, independent of everything."""
    return x.detach().dequantize() if x.is_quantized else x.detach().clone()


@kinds
def test_equal_and_unnoticed(make):
    """Values, dtype and shape are the source's, and the source is untouched."""
    x = make()
    caller = Caller(x) if not x.is_quantized else None
    copy = snapshot(x)
    same(values(copy), values(x))
    assert copy.requires_grad == x.requires_grad
    if caller is not None:
        caller.check()


@kinds
def test_a_write_of_the_caller_does_not_reach_the_snapshot(make):
    """Which is what it is for."""
    x = make()
    copy, was = snapshot(x), values(x)
    if "expanded" in str(make.__code__.co_names) or x.stride() == (0, 1):
        x = x[0]
    write(x)
    same(values(copy), was)


@kinds
def test_a_write_of_the_snapshot_does_not_reach_the_caller(make):
    """Either."""
    x = make()
    copy, was = snapshot(x), values(x)
    write(copy)
    same(values(x), was)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("plain", True), ("leaf", True), ("non-leaf", True), ("bool", True), ("complex", True),
        ("slice", False), ("transposed", False), ("expanded", False), ("channels_last", False),
        ("complex leaf", False), ("conjugate", False), ("negated", False), ("from numpy", False),
        ("shared memory", False), ("quantized", False),
    ],
)  # fmt: skip
def test_where_a_lazy_copy_is_safe(name, safe):
    """Ordinary tensors that own all of their memory, alone."""
    x = KINDS[name]()
    assert may_share(x) is safe


@pytest.mark.parametrize(
    "export",
    [lambda x: x.numpy(), torch.from_dlpack, np.from_dlpack, lambda x: x.__array__()],
    ids=["numpy", "torch dlpack", "numpy dlpack", "array"],
)
def test_arrays_that_the_caller_made_before_stay_coupled(export):
    """Later writes of the caller show in them, as without the library."""
    x = torch.zeros(3)
    alias = export(x)
    w = torch.ones(3, requires_grad=True)
    y = freeze_inputs(snapshot=True)(lambda x: x * w)(x)
    x.add_(1)
    assert alias.tolist() == [1, 1, 1]
    y.sum().backward()
    assert w.grad.tolist() == [0, 0, 0]


def test_a_snapshot_that_nobody_disturbs_costs_nothing():
    """It shares memory until either side writes."""
    x = torch.zeros(1 << 20)
    guarded = freeze_inputs(snapshot=True)(lambda x: x.shape)
    guarded(x)
    with torch.profiler.profile(profile_memory=True) as profile:
        guarded(x)
    allocated = [e.self_cpu_memory_usage for e in profile.events() if e.self_cpu_memory_usage > 0]
    assert sum(allocated) < 10_000


def test_saving_and_loading():
    """A snapshot, and its source, can be saved, loaded and written."""
    x = torch.arange(3.0)
    copy = snapshot(x)
    buffer = io.BytesIO()
    torch.save({"x": x, "copy": copy}, buffer)
    buffer.seek(0)
    back = torch.load(buffer)
    back["x"].add_(1)
    back["copy"].add_(2)
    assert (x.tolist(), copy.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert (back["x"].tolist(), back["copy"].tolist()) == ([1, 2, 3], [2, 3, 4])


def test_gradients_flow_through_a_snapshot():
    """Under no_grad too: the snapshot is in the graph of its source."""
    w = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        copy = snapshot(w)
    (copy * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_a_snapshot_call_is_independent_both_ways():
    """Writes inside and outside, with a saved value in between."""
    w = torch.ones(3, requires_grad=True)

    @freeze_inputs(snapshot=True)
    def forward(x, w):
        y = x * w
        x.add_(10)
        return y, x

    x = torch.zeros(3)
    y, z = forward(x, w)
    x.add_(100)
    assert (z.tolist(), x.tolist()) == ([10] * 3, [100] * 3)
    y.sum().backward()
    assert w.grad.tolist() == [0, 0, 0]
