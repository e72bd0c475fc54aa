"""Private names of torch that tell who is written: they exist, and without them names decide."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from safemodule import _writes, _writes_compat, _writes_schema
from safemodule._writes import Kind, effect_of

NAMES = (
    "_jit_get_schemas_for_operator",
    "_dispatch_has_kernel_for_dispatch_key",
    "DisableTorchFunction",
)
A, B, C = torch.zeros(2), torch.zeros(2), torch.zeros(2)


@pytest.fixture
def bare(monkeypatch):
    """Return the file as on a torch that lacks its names, in the place of the real one."""
    with monkeypatch.context() as hidden:
        for name in NAMES:
            hidden.delattr(torch._C, name)
        spec = importlib.util.spec_from_file_location("bare", _writes_compat.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    monkeypatch.setattr(_writes_schema, "find_schemas", module.find_schemas)
    monkeypatch.setattr(_writes_schema, "has_kernel", module.has_kernel)
    monkeypatch.setattr(_writes, "EFFECTS", {})
    return module


@pytest.mark.parametrize("name", NAMES)
def test_exists(name):
    """A release of torch that loses a name is noticed here."""
    assert hasattr(torch._C, name)
    assert torch.ops.aten.add_.Tensor._schema.name == "aten::add_"


def test_functions_without_schemas(bare):
    """Names decide, and any result is looked at."""
    assert effect_of(Tensor.add_).written((A, B), {})[0] is A
    assert effect_of(torch.add).written((A, B), {"out": C})[0] is C
    assert effect_of(Tensor.add).may_alias
    statistics = torch.zeros(2), torch.ones(2)
    written = effect_of(F.batch_norm).written((A, *statistics), {"training": True})
    assert written[1] is statistics[1]


def test_operators_without_schemas(bare):
    """An overload keeps its own schema; a packet is judged by its name and by out=."""
    assert effect_of(torch.ops.aten.add_.Tensor).written((A, B), {})[0] is A
    assert effect_of(torch.ops.aten.add_).written((A, B), {})[0] is A
    assert effect_of(torch.ops.aten.add).written((A, B), {"out": C})[0] is C
    assert not effect_of(torch.ops.aten.add).written((A, B), {})
    assert effect_of(torch.ops.aten.add.Tensor).may_alias  # it may be made of others


class Bare:
    """An overload that shows no schema."""

    def __init__(self, overload):
        self._overload = overload

    def name(self):
        """Return its public name."""
        return self._overload.name()

    def __str__(self):
        return str(self._overload)


def test_overload_without_its_attribute(bare, monkeypatch):
    """The schema is found by the name; without that either, the name decides."""
    overload = torch.ops.aten.add.out
    assert _writes_compat.schema_of(Bare(overload)) == overload._schema
    assert bare.schema_of(Bare(overload)) is None
    monkeypatch.setattr(_writes, "_Overload", Bare)
    monkeypatch.setattr(_writes, "schema_of", bare.schema_of)
    effect = effect_of(Bare(overload))
    assert effect.kind is Kind.WRITE
    assert effect.written((A, B), {"out": C})[0] is C
    assert effect_of(Bare(torch.ops.aten.add_.Tensor)).written((A, B), {})[0] is A


class Counts(BaseTorchFunctionMode):
    """Counts what it sees."""

    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_interception_off(bare):
    """Neither a subclass nor a mode sees a read; without the name a mode does."""
    for off, expected in ((_writes_compat.interception_off, 0), (bare.interception_off, 1)):
        with Counts() as mode, off():
            assert A.dim() == 1
        assert mode.seen == expected
