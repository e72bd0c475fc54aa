"""The handle of compiled regions, run as it stands: what TorchDynamo reads, computes the same.

`tests/compat/test_compile.py` has the compiler trace it.
"""

from __future__ import annotations

import pytest
import torch

from safemodule import _compile, freeze_inputs
from safemodule._compile_tensor import CompiledHandle, handles_work
from safemodule._guarded import PLAN
from tests.compat.test_compile import OPERATIONS, WRITES_RETURNED, one
from tests.helpers import compare_with_clones


@pytest.fixture
def traced(monkeypatch):
    """Return what calls a function as a compiler would see it called."""
    monkeypatch.setattr(_compile, "_with_handles", lambda: True)

    def wrap(function, **options):
        plan = getattr(freeze_inputs(**options)(function), PLAN)
        return lambda *args, **kwargs: _compile.compiled_call(function, plan, args, kwargs)

    return wrap


def agree(traced, function, make_inputs):
    """Assert that both forms of a guarded call do the same, and leave the caller alone."""
    guarded = freeze_inputs(function)
    compare_with_clones(
        traced(function), guarded, make_inputs, reference=guarded, strides=False, exact=False
    )


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "checkpoint"])
def test_operations(traced, name):
    """Every way to write, after autograd has used the value; the checkpoint is the compiler's own."""
    agree(traced, OPERATIONS[name], one)


@pytest.mark.parametrize("name", WRITES_RETURNED)
def test_written_and_read_later(traced, name):
    """What was written stays a handle: it is read and written once more."""
    write = WRITES_RETURNED[name]

    def forward(x, y):
        write(x, y)
        before = x.sin() + x.exp()
        x.mul_(2)
        return before, x

    agree(traced, forward, lambda: (one()[0], one()[0] + 2))


MORE = {
    "out= by name": lambda x: [x.exp(), torch.mul(x.detach(), 2, out=x.data)][0],
    "out= of nothing": lambda x: torch.add(x, 1, out=None),
    "as it is": lambda x: x.backward(torch.ones(2, 3)) or x * x,
    "max_norm": lambda x: [x.sin(), torch.nn.functional.embedding(ROW, x.data, max_norm=0.1)],
    "norm": lambda x: [x.norm(), x.add_(1)][0],
    "lists": lambda x: torch.stack([*x.unbind(0), *x.split(1)[0]]),
    "a list of inputs": lambda x: [torch.meshgrid([x[0], x[1]], indexing="ij")[0] * 2, x.sin()],
    "a pair of inputs": lambda x: [torch.block_diag(x, x), torch.atleast_2d((x, x))[1] * 2],
    "write into a list of inputs": lambda x: [
        (x * x).sum(),
        torch._foreach_mul_([x[0], x[1]], [2.0, 3.0]),
        x * x,
    ][::2],
    "saves its result, by a list": lambda x: [x * x, torch._foreach_exp_([x[0]]), x.sin()][::2],
    "a tuple of views": lambda x: torch.tensor_split(x, 2)[0].mul_(2) + x.sin(),
    "a list of views": lambda x: torch.ops.aten.split.Tensor(x, 1)[0] * 2 + x.sin(),
    "no tensor": lambda x: x * len(x.type()),
    "a list for a function in Python": lambda x: torch.nn.functional.interpolate(x[None], [6]),
    "read of a tuple": lambda x: [torch.stack((x[0], x[1])), x.zero_()][0],
}
ROW = torch.tensor([0])


@pytest.mark.parametrize("name", MORE)
def test_further_operations(traced, name):
    """Arguments in lists, by name, and results that are several."""
    agree(traced, MORE[name], lambda: (one()[0] * 1,))


def test_nothing_leaks(traced):
    """What comes out is plain, however deep it stands; what was not written as well."""

    def forward(x):
        return {"x": x, "views": (x[0], [x.t()]), "other": 1}

    out = traced(forward)(one()[0])
    tensors = [out["x"], out["views"][0], out["views"][1][0]]
    assert {type(tensor) for tensor in tensors} == {torch.Tensor}


def test_class_is_kept_inside():
    """TorchDynamo is told once."""
    assert handles_work() is handles_work()
    assert issubclass(CompiledHandle, torch.Tensor)
