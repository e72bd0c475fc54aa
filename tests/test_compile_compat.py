"""Private names of torch that the compiling path uses: without them less is compiled, nothing breaks."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from safemodule import _compile_compat as compat
from safemodule._compile_tensor import CompiledHandle
from safemodule._tensor import FrozenTensor

needs_setting = pytest.mark.skipif(
    torch.__version__ < "2.8", reason="this torch has no nontraceable_tensor_subclasses"
)


def install(monkeypatch, eval_frame, own=lambda: ()):
    """Adapt a module as `torch._dynamo.eval_frame` is adapted once it is imported."""
    monkeypatch.setattr(compat, "when_imported", lambda _, then: then(eval_frame))
    compat.adapt_compiled(lambda made: ("adapted", made), FrozenTensor, own)


@needs_setting
def test_exist():
    """A release of torch that loses a name is noticed here."""
    import torch._dynamo.codegen
    from torch._dynamo import config, eval_frame, utils

    assert hasattr(torch._ops, "HigherOrderOperator")
    assert isinstance(config.nontraceable_tensor_subclasses, set)
    assert FrozenTensor in config.nontraceable_tensor_subclasses
    assert callable(utils.to_subclass)
    assert callable(eval_frame.skip_code)
    assert torch.tanh in torch._dynamo.variables.torch.get_overridable_functions()
    assert eval_frame._TorchDynamoContext.__call__.__wrapped__ is not None


def test_functions_that_are_compiled(monkeypatch):
    """What the compiler makes goes through the adapter, if it is a function; our code is skipped."""

    class Context:
        def __call__(self, fn):
            return fn

    skipped, refused = [], set()
    config = types.SimpleNamespace(nontraceable_tensor_subclasses=refused)
    module = types.SimpleNamespace(
        config=config, skip_code=skipped.append, _TorchDynamoContext=Context
    )
    install(monkeypatch, module, own=lambda: [install.__code__])
    assert refused == {FrozenTensor}
    assert skipped == [install.__code__]
    assert Context()(install) == ("adapted", install)
    assert Context()(module) is module


def test_without_any_name(monkeypatch):
    """An older or newer compiler is left as it is."""
    bare = types.SimpleNamespace(config=types.SimpleNamespace())
    install(monkeypatch, bare)
    assert vars(bare).keys() == {"config"}


def test_handles_need_a_setting(monkeypatch):
    """Without it the compiled code gets clones and no handles."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", types.SimpleNamespace())
    utils = types.SimpleNamespace(to_subclass=lambda tensor, cls: (tensor, cls))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    assert not compat.kept_inside(CompiledHandle)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert not compat.kept_inside(CompiledHandle)


def test_in_place_functions_are_routed(monkeypatch):
    """To tensor subclasses, also those that torch does not list; nothing to do without the list."""
    listed = {torch.tanh}
    tables = types.SimpleNamespace(get_overridable_functions=lambda: listed)
    monkeypatch.setitem(sys.modules, "torch._dynamo.variables.torch", tables)
    compat.route_in_place_functions()
    assert {torch.tanh, torch.tanh_, torch.nn.functional.elu_} <= listed
    assert torch.sin not in listed
    tables.get_overridable_functions = lambda: (torch.tanh,)
    compat.route_in_place_functions()
    monkeypatch.setitem(sys.modules, "torch._dynamo.variables.torch", None)
    compat.route_in_place_functions()


def test_handles_stay_inside(monkeypatch):
    """A tensor that leaves a graph becomes no handle; other classes are made as before, once."""
    config = types.SimpleNamespace(nontraceable_tensor_subclasses=set())
    utils = types.SimpleNamespace(to_subclass=lambda tensor, cls: (tensor, cls))
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", config)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    assert compat.kept_inside(CompiledHandle)
    convert = utils.to_subclass
    assert compat.kept_inside(CompiledHandle)
    assert utils.to_subclass is convert
    x = torch.ones(1)
    assert convert(x, CompiledHandle) is x
    assert convert(x, FrozenTensor) == (x, FrozenTensor)
