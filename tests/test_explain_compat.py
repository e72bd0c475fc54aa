"""The private names of torch that `explain()` uses exist, and their fallbacks do the same."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from safemodule import _explain_compat as compat

NAMES = [
    "_C._DisableTorchDispatch",
    "_C._ForceDispatchKeyGuard",
    "_C._current_autograd_node",
    "_C._dispatch_has_kernel_for_dispatch_key",
    "_C._dispatch_tls_local_exclude_set",
    "_C._dispatch_tls_local_include_set",
    "_C._get_dispatch_stack_at",
    "_C._len_torch_dispatch_stack",
    "_C._pop_torch_dispatch_stack",
    "_C._push_on_torch_dispatch_stack",
    "_C._storage_address",
    "_C._autograd._pop_saved_tensors_default_hooks",
    "_C._autograd._push_saved_tensors_default_hooks",
    "_C._autograd._saved_tensors_hooks_disable",
    "_C._autograd._saved_tensors_hooks_is_enabled",
    "Tensor._make_subclass",
    "autograd.function.BackwardCFunction",
    "autograd.graph._engine_run_backward",
    "nn.Module._wrapped_call_impl",
    "utils._python_dispatch.TorchDispatchMode",
]


@pytest.mark.parametrize("name", NAMES)
def test_exists(name):
    """A release of torch that loses a name is noticed here."""
    thing = torch
    for part in name.split("."):
        thing = getattr(thing, part)


def test_hooks_can_be_seen():
    """Torch shows the innermost hooks since 2.7; before, some things are less exact."""
    assert (torch.__version__ >= "2.7") == compat.SEES_HOOKS


def test_alias():
    """Both ways make an alias: same memory, same version counter, no graph."""
    for x in (torch.ones(3), torch.ones(3, requires_grad=True) * 2):
        for make in (compat.make_alias, compat._alias_slowly):
            alias = make(torch.Tensor, x)
            x.detach().add_(1)
            assert alias._version == x._version
            assert compat.storage_of(alias) == compat.storage_of(x)
            assert compat._storage_address_slowly(alias) == compat.storage_of(x)
            assert alias.grad_fn is None
            assert not alias.requires_grad


def test_version_of_a_subclass():
    """A subclass is not asked: its `__torch_function__` could do anything."""

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    x = torch.ones(3).as_subclass(Loud)
    with compat.interception_off():
        x.add_(1)
    assert compat.version_of(x) == 1
    assert compat.storage_of(x) == compat._storage_address_slowly(x)
    assert not compat.pin_storage(x).expired()


def test_parts_of_an_operation():
    """Name, schema and runner of an operation, and of one that has no schema."""
    add = torch.ops.aten.add_.Tensor
    assert compat.op_name(add) == "add_"
    assert compat.op_name(len) == "<built-in function len>"
    assert compat.schema_of(len) is None
    assert compat.runner(len) is len
    assert compat.runner(add)(torch.ones(1), torch.ones(1)) == 2
    assert compat.counts_writes(add)
    assert not compat.counts_writes(torch.ops.aten._foreach_add_.Scalar)


def test_a_backward_that_failed_is_forgotten():
    """The nodes that the engine did not come to are kept until its queue is emptied."""

    class Value:
        pass

    def pack(tensor):
        value = Value()
        value.tensor = tensor.detach()
        values.add(value)
        return value

    def unpack(value):
        raise RuntimeError("no")

    values = weakref.WeakSet()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        w = torch.ones(3, requires_grad=True)
        loss = (w * torch.ones(3)).sum() + (w * torch.ones(3)).sum()
    with pytest.raises(RuntimeError, match="no"):
        loss.backward()
    del loss
    gc.collect()
    assert values
    compat._empty_queue()
    gc.collect()
    assert not values


def test_a_process_ends_well_after_an_error():
    """With nodes left in the queue: by the error, not by a signal."""
    script = (
        "import torch\n"
        "from safemodule import explain\n"
        "w, x, loss = torch.ones(3, requires_grad=True), torch.ones(3), 0\n"
        "with explain():\n"
        "    for _ in range(3):\n"
        "        loss = loss + (w * x).sum()\n"
        "        x.add_(1)\n"
        "    loss.backward()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "safemodule.InplaceError" in done.stderr


class Square(torch.autograd.Function):
    """A custom Function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError  # never run backward


def test_what_a_node_saved():
    """Names, raw values and Functions of nodes; nothing of a node that has no such attributes."""
    w = torch.ones(3, requires_grad=True)
    outputs = w.tanh(), Square.apply(w)  # older torch lets go of what was saved with the output
    tanh, square = (out.grad_fn for out in outputs)
    assert compat.saved_attributes(tanh) == ["_saved_result"]
    assert compat.saved_name("_saved_result") == "result"
    assert "saved_tensors" in compat.saved_attributes(square)
    assert compat.saved_name("saved_tensors") == "saved_tensors"
    assert isinstance(compat.raw_saved(tanh, "result"), torch._C._autograd.SavedTensor)
    assert len(compat.raw_saved(square, "saved_tensors")) == 1
    assert compat.forward_of(square) is Square.forward
    assert compat.forward_of(tanh) is None
    bare = object()
    assert compat.saved_attributes(bare) == []
    assert compat.raw_saved(bare, "result") is compat.forward_of(bare) is None


@pytest.mark.parametrize("training", [False, True])
def test_node_of_a_batch_norm_tells_whether_it_trains(training):
    """In training it uses none of the running statistics that it saved."""
    norm = nn.BatchNorm1d(2).train(training)
    assert compat.saved_in_training(norm(torch.rand(3, 2)).grad_fn) is training
    assert not compat.saved_in_training(object())


def test_never_compile():
    """The compiler can be kept away from a function, by the name that this torch has for it."""
    assert (compat._set_strategy or compat._skip_code) is not None
    compat.never_compile(lambda: None)


def test_never_compile_by_its_older_name(monkeypatch):
    """Until 2.6 one function did it; without any nothing is done."""
    skipped = []
    monkeypatch.setattr(compat, "_set_strategy", None)
    monkeypatch.setattr(compat, "_skip_code", skipped.append)
    compat.never_compile(test_alias)
    assert skipped == [test_alias.__code__]
    monkeypatch.setattr(compat, "_skip_code", None)
    compat.never_compile(test_alias)
    assert len(skipped) == 1


def test_mode_that_somebody_else_took_off():
    """Leaving a mode that is not on the stack leaves the others there."""

    class Mode(compat.DispatchMode):
        pass

    mode, other = Mode(), Mode()
    with other:
        compat.leave_mode(mode)
        assert compat._mode_at(compat._mode_count() - 1) is other


def test_without_private_names(monkeypatch):
    """With all of them gone the block still explains."""
    for name in NAMES:
        path, _, last = name.rpartition(".")
        if last in {"TorchDispatchMode", "BackwardCFunction", "_saved_tensors_hooks_disable"}:
            continue
        owner = torch
        for part in path.split("."):
            owner = getattr(owner, part)
        if owner in (torch.Tensor, nn.Module) or "hooks" in last or last.startswith("_engine"):
            continue  # torch itself needs them to work
        monkeypatch.delattr(owner, last)
    spec = importlib.util.spec_from_file_location("compat_without", compat.__file__)
    bare = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compat_without", bare)
    spec.loader.exec_module(bare)
    monkeypatch.undo()
    assert not bare._OWN_STACK
    with bare.counting():  # nothing to force
        assert torch.ones(1).add_(1) == 2
    assert bare.current_node() is None
    for name, module in list(sys.modules.items()):
        if name.startswith("safemodule._explain") and getattr(module, "compat", None) is compat:
            monkeypatch.setattr(module, "compat", bare)
    monkeypatch.setattr("safemodule._explain_mode.WriteMode._should_skip_dynamo", lambda: False)

    from safemodule._errors import InplaceError
    from safemodule._explain import explain

    w = torch.ones(3, requires_grad=True)
    for _ in range(2):
        with pytest.raises(InplaceError) as info, explain():
            y = w.exp()
            y.add_(1)
            y.sum().backward()
        assert "saved for backward at version 0" in str(info.value)
        assert "written by add_, to version 1" in str(info.value)
