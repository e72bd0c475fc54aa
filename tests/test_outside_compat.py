"""Where torch lacks a name, or routes collectives otherwise."""

from __future__ import annotations

import types

import pytest
import torch

from safemodule import _outside, _outside_compat, freeze_inputs, record
from safemodule._tensor import FrozenTensor


@pytest.fixture
def older(monkeypatch):
    """Return a module as `distributed_c10d` is where collectives do not ask for overrides."""
    module = types.SimpleNamespace(
        _check_single_tensor=lambda tensor, name: seen.append((tensor, name)),
    )
    seen = module.seen = []
    monkeypatch.setattr(_outside_compat, "when_imported", lambda _, then: then(module))
    _outside_compat.before_collectives(FrozenTensor, _outside._for_a_collective)
    return module


def test_collectives_of_older_torch(older):
    """Each tensor that is checked has memory of its own before the process group gets it."""

    @freeze_inputs
    def reduce(x):
        older._check_single_tensor(x, "tensor")
        x.untyped_storage()  # what C++ would write
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.add_(x, 1)
        return x

    x = torch.zeros(3)
    with record() as log:
        out = reduce(x)
    assert (x.tolist(), out.tolist()) == ([0] * 3, [1] * 3)
    assert [name for _, name in older.seen] == ["tensor"]
    assert log.copies[0].op == "torch.distributed"


def test_plain_tensors_of_a_collective(older):
    """They pass as they are, a list too."""
    x = torch.zeros(3)
    older._check_single_tensor([x], "tensor")
    assert older.seen == [([x], "tensor")]


def test_newer_torch_is_left_alone(monkeypatch):
    """Where collectives ask for overrides, they are seen as operations."""
    module = types.SimpleNamespace(has_torch_function=len, _check_single_tensor=len)
    monkeypatch.setattr(_outside_compat, "when_imported", lambda _, then: then(module))
    _outside_compat.before_collectives(FrozenTensor, _outside._for_a_collective)
    assert module._check_single_tensor is len


def test_transforms_that_have_moved(monkeypatch):
    """A name that is not there is passed over."""
    wrappers = (("torch._functorch.vmap", "no_such_name"), ("torch.no_such_module", "name"))
    monkeypatch.setattr(_outside_compat, "_WRAPPERS", wrappers)
    _outside_compat.before_transforms(FrozenTensor, _outside._for_a_transform)
    assert not hasattr(torch._functorch.vmap, "no_such_name")
