"""`guard()`: the model is protected, and afterwards everything is as it was."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import pickle
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import safemodule
from safemodule import (
    InputMutationError,
    Mutable,
    SafeModule,
    _guard_everywhere,
    freeze_inputs,
    guard,
    mode,
    record,
)
from safemodule._guard_forward import MARK, InstanceForward


class Shift(nn.Module):
    """Writes its input."""

    def forward(self, x):
        x += 1
        return x * 2


class Net(nn.Module):
    """Calls a submodule that writes what it is given."""

    def __init__(self):
        super().__init__()
        self.shift = Shift()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(self.shift(x)) + x


class Direct(nn.Module):
    """Calls the forward of its submodule directly."""

    def __init__(self):
        super().__init__()
        self.shift = Shift()

    def forward(self, x):
        return self.shift.forward(x) + x


def writes(call, x=None):
    """Tell whether a call changes its input, and return what it returns."""
    x = torch.zeros(3) if x is None else x
    before = x.clone()
    out = call(x)
    return not torch.equal(x, before), out


def traces():
    """Return everything that a guard may touch outside of the modules it guards."""
    classes = (Shift, Net, Direct, nn.Linear, nn.ReLU, nn.Sequential, nn.Module)
    hooks = torch.nn.modules.module._global_module_registration_hooks
    return [cls.__dict__.get("forward") for cls in classes], nn.Module.__call__, dict(hooks)


@pytest.fixture(autouse=True)
def undone():
    """Whatever a test does, its guards leave no trace."""
    before = traces()
    yield
    assert traces() == before
    assert _guard_everywhere._stack == []


def test_submodules_cannot_write_what_they_are_given():
    """The model's result is that of cloned inputs, and the write is on record."""
    net = Net()
    x = torch.zeros(3)
    expected = net.linear((x + 1) * 2) + x
    with guard(net), record() as log:
        written, out = writes(net)
    assert not written
    assert torch.equal(out, expected)
    assert [(m.module, m.argument, m.op) for m in log] == [(f"{__name__}.Shift", "x", "add_")]
    assert type(out) is torch.Tensor


def test_holds_from_the_call_until_removal():
    """No block is needed; removing twice is harmless."""
    net = Net()
    held = guard(net)
    assert held.active
    assert not writes(net)[0]
    held.remove()
    held.remove()
    assert not held.active
    assert writes(net)[0]


def test_type_of_a_guard_is_public_and_no_star_import():
    """What `guard` returns can be named in an annotation, and shows its public name."""
    for made in (guard(Net()), guard()):
        with made:
            assert isinstance(made, safemodule.Guard)
    assert f"{safemodule.Guard.__module__}.{safemodule.Guard.__qualname__}" == "safemodule.Guard"
    assert "Guard" not in safemodule.__all__


def test_removed_at_the_end_of_the_block_in_case_of_an_error():
    """The block ends as any other."""
    net = Net()
    with pytest.raises(ValueError, match="mine"), guard(net):
        raise ValueError("mine")
    assert writes(net)[0]


def test_model_is_what_it_was():
    """Types, state_dict, attributes and parameters stay as they are, during and after."""
    net = Net()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    attributes, names = dict(vars(net)), [name for name, _ in net.named_modules()]
    with guard(net):
        assert type(net) is Net
        assert type(net.linear) is nn.Linear
        assert net.state_dict().keys() == state.keys()
        assert [name for name, _ in net.named_modules()] == names
        net.load_state_dict(state)
    assert vars(net) == attributes
    assert MARK not in vars(net.shift)


def test_other_instances_are_not_guarded():
    """Only the model given is, though its class is shared."""
    net, other = Net(), Net()
    with guard(net):
        assert writes(other)[0]
        assert not writes(net)[0]


def test_top_only():
    """`submodules=False` guards the model's own inputs, and no submodule called elsewhere."""
    net = Net()
    with guard(net, submodules=False):
        assert not writes(net)[0]
        assert writes(net.shift)[0]


def test_direct_calls_of_forward():
    """A module that calls the forward of another one directly is protected as well."""
    net = Direct()
    with guard(net):
        assert not writes(net.shift.forward)[0]
        x = torch.zeros(3)
        assert torch.equal(net(x), torch.full((3,), 2.0))


def test_shared_submodules():
    """A module used in two places is guarded once."""
    shift = Shift()
    net = nn.Sequential(shift, nn.Identity(), shift)
    with guard(net), record() as log:
        assert not writes(net)[0]
        assert len(vars(shift)[MARK]) == 1
    assert log[0].count == 2
    assert MARK not in vars(shift)


def test_submodules_added_later():
    """By attribute, add_module, a list's append and a dict's item; their submodules too."""
    net = nn.Sequential(nn.ModuleList(), nn.ModuleDict())
    with guard(net):
        net.later = Net()
        net.add_module("named", Shift())
        net[0].append(Shift())
        net[1]["key"] = Shift()
        later = (net.later, net.later.shift, net.named, net[0][0], net[1]["key"])
        assert [writes(module)[0] for module in later] == [False] * 5
        other = nn.Sequential()
        other.append(Shift())
        assert writes(other[0])[0]
    assert [writes(module)[0] for module in later] == [True] * 5


def test_submodules_added_later_to_the_top_only():
    """They are not guarded where no submodule is."""
    net = Net()
    with guard(net, submodules=False):
        net.later = Shift()
        assert writes(net.later)[0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, nn.Module._replicate_for_data_parallel]
)
def test_copies_are_guarded_until_removal(copied):
    """A copy runs its own forward with its own parameters, guarded by the same guard."""
    net = Net()
    with guard(net):
        twin = copied(net)
        twin._modules = {name: copied(module) for name, module in net._modules.items()}
        twin.linear._parameters = {"weight": torch.zeros(3, 3), "bias": torch.full((3,), 7.0)}
        assert not writes(twin)[0]
        assert not writes(twin.shift)[0]
        assert torch.equal(twin(torch.zeros(3)), torch.full((3,), 7.0))
        assert not torch.equal(net(torch.zeros(3)), torch.full((3,), 7.0))
    assert writes(twin)[0]
    assert writes(twin.shift)[0]
    with guard(twin):
        assert not writes(twin)[0]


def test_copies_of_a_model_under_two_guards():
    """A copy outlives one of them, and is still guarded by the other."""
    net = Net()
    with guard(net, mode="strict"):
        inner = guard(net, mode="copy")
        twin = copy.deepcopy(net)
        assert not writes(twin)[0]
        inner.remove()
        with pytest.raises(InputMutationError):
            twin(torch.zeros(3))
    assert writes(twin)[0]


def test_pickles_are_plain():
    """A guarded model is pickled, and what is loaded is an unguarded one."""
    net = Net()
    with guard(net):
        during = pickle.loads(pickle.dumps(net))
        assert writes(during)[0]
        with guard(during):
            assert not writes(during)[0]
        assert MARK not in vars(during)
        with guard():
            assert not writes(pickle.loads(pickle.dumps(net)))[0]
    after = pickle.loads(pickle.dumps(net))
    assert writes(after)[0]
    assert vars(after.shift).keys() == vars(Shift()).keys()


def test_a_safe_module_keeps_what_it_declares():
    """It is not guarded twice."""

    class Safe(SafeModule, mode="strict"):
        def forward(self, x):
            return x.add_(1)

    class SafeShift(SafeModule, Shift):
        pass

    net = nn.Sequential(Safe(), SafeShift())
    with guard(net, mode="copy"), record() as log:
        with pytest.raises(InputMutationError):
            net(torch.zeros(3))
        assert not writes(net[1])[0]
    assert [m.count for m in log] == [1]
    with guard(), record() as log:
        assert not writes(net[1])[0]
    assert [m.count for m in log] == [1]


def test_parents_forward_is_part_of_the_call():
    """`super().forward(x)` writes to the copy of the call, and is recorded once."""

    class Child(Shift):
        def forward(self, x):
            out = super().forward(x)
            return out + x

    net = nn.Sequential(Child(), Shift())
    with guard(net), record() as log:
        assert torch.equal(net[0](torch.zeros(3)), torch.full((3,), 3.0))
        assert not writes(net[0])[0]
    assert [(m.module.rpartition(".")[2], m.count) for m in log] == [("Child", 2)]


def test_mode_of_the_guard():
    """It is what a decorator's mode is: `with mode(...)` is nearer."""
    net = Net()
    with guard(net, mode="strict"):
        with pytest.raises(InputMutationError) as error:
            net(torch.zeros(3))
        assert error.value.mutation.line == "x += 1"
        with mode("copy"):
            assert not writes(net)[0]
        with mode("off"):
            assert writes(net)[0]
    with guard(net, mode="off"):
        assert writes(net)[0]


def test_the_latest_guard_decides():
    """In whichever order they are removed."""
    net = Net()
    outer = guard(net, mode="strict")
    inner = guard(net, mode="copy")
    assert not writes(net)[0]
    outer.remove()
    assert not writes(net)[0]
    inner.remove()
    assert writes(net)[0]
    assert MARK not in vars(net)


def test_mutable_names_are_left_alone():
    """Where a forward has such a parameter; annotations count too."""

    class Cached(nn.Module):
        def forward(self, x, cache, other: Mutable[torch.Tensor]):
            x += 1
            cache += x
            other += x
            return x

    class Open(nn.Module):
        def forward(self, x, **more):
            more["cache"] += 1
            return x.add_(1)

    net = nn.Sequential(Cached(), Open(), Shift())
    x, cache, other = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    with guard(net, mutable=("cache",)):
        net[0](x, cache, other=other)
        net[1](x, cache=cache)
        net[2](x)
    assert x.tolist() == [0, 0, 0]
    assert cache.tolist() == [2, 2, 2]
    assert other.tolist() == [1, 1, 1]


def test_mutable_names_must_exist():
    """A slip is refused, with the names there are, and nothing stays guarded."""
    net = Net()
    with pytest.raises(ValueError, match=r"'cach' is no parameter .*: input, x$"):
        guard(net, mutable=("cach",))
    assert writes(net)[0]
    with pytest.raises(TypeError, match=r'mutable=\("cache",\)'):
        guard(net, mutable="cache")


def test_what_cannot_be_guarded():
    """The errors name it."""
    with pytest.raises(TypeError, match="takes a module, not function"):
        guard(lambda x: x)
    with pytest.raises(TypeError, match="not type"):
        guard(Net)
    with pytest.raises(ValueError, match="'loud'"):
        guard(Net(), mode="loud")


def test_modules_without_a_forward_of_their_own():
    """Containers and generators are left alone."""

    class Steps(nn.Module):
        def forward(self, x):
            yield x.add_(1)

    net = nn.ModuleList([Shift(), Steps()])
    with guard(net):
        assert not writes(net[0])[0]
        assert writes(lambda x: list(net[1](x)))[0]
        with pytest.raises(NotImplementedError):
            net(torch.zeros(3))


def test_static_forward():
    """A forward that is no plain function is guarded all the same."""

    class Static(nn.Module):
        @staticmethod
        def forward(x):
            return x.add_(1)

    net = Static()
    kept = Static.__dict__["forward"]
    with guard(net):
        assert not writes(net)[0]
        assert not writes(copy.copy(net))[0]
    assert Static.__dict__["forward"] is kept
    assert writes(net)[0]


def test_coroutine_forward():
    """What an awaited forward returns is plain, and the input untouched."""

    class Later(nn.Module):
        async def forward(self, x):
            await asyncio.sleep(0)
            return x.add_(1)

    net, x = Later(), torch.zeros(3)
    with guard(net):
        out = asyncio.run(net(x))
    assert type(out) is torch.Tensor
    assert (x.tolist(), out.tolist()) == ([0, 0, 0], [1, 1, 1])


def test_forward_assigned_to_an_instance():
    """It is guarded where it stands, and put back exactly."""
    net = Net()

    def assigned(x):
        return x.add_(1)

    net.shift.forward = assigned
    with guard(net), record() as log:
        assert not writes(net.shift)[0]
        assert not writes(net.shift.forward)[0]
    assert net.shift.forward is assigned
    assert [m.module for m in log] == [f"{__name__}.Shift"]
    assert writes(net.shift)[0]


def test_assigned_forwards_that_are_left_alone():
    """One that is guarded already keeps what it declares; one that is nothing stays nothing."""
    net, cache = Net(), torch.zeros(3)
    declared = net.shift.forward = freeze_inputs(mutable=("x",))(lambda x: x.add_(1))
    net.linear.forward = None
    with guard(net):
        assert net.shift.forward is declared
        assert net.linear.forward is None
        net.shift(cache)
    assert cache.tolist() == [1, 1, 1]


def test_assigned_forward_under_two_guards():
    """The one that is left still guards it; what the user puts in its place stays."""
    shift = Shift()
    assigned = shift.forward = lambda x: x.add_(1)
    with guard(shift):
        with guard(shift):
            pass
        assert not writes(shift)[0]
    assert shift.forward is assigned
    with guard(shift):
        other = shift.forward = lambda x: x.add_(2)
    assert shift.forward is other


def test_copy_of_an_assigned_forward():
    """A shallow copy does the same."""
    shift = Shift()
    shift.forward = lambda x: x.add_(1)
    with guard(shift):
        twin = copy.copy(shift.forward)
        assert isinstance(twin, InstanceForward)
        assert not writes(twin)[0]
    assert writes(twin)[0]


def test_forward_taken_from_a_bare_module():
    """It is none, and raises as it does in a plain module."""

    class Bare(nn.Module):
        forward = nn.Module.forward

    with guard(Bare()) as protection, pytest.raises(NotImplementedError, match='"forward"'):
        Bare()(torch.zeros(1))
    assert not protection.active


def test_copy_of_a_guard():
    """There is one of it."""
    with guard(Net()) as protection:
        assert copy.copy(protection) is protection


def test_removed_while_a_call_begins():
    """A call that found the guard of every module before it was removed is not guarded."""
    protection = guard()
    protection.remove()
    protection.meet(Shift())
    assert writes(Shift())[0]


def test_copies_of_a_module_with_an_assigned_forward():
    """A deep copy binds to the copy, a pickle holds what was assigned."""
    net = Net()
    net.shift.forward = types.MethodType(Shift.forward, net.shift)
    with guard(net):
        twin = copy.deepcopy(net)
        assert twin.shift.forward.__wrapped__.__self__ is twin.shift
        assert not writes(twin.shift)[0]
        loaded = pickle.loads(pickle.dumps(net.shift))
        assert not isinstance(loaded.__dict__["forward"], InstanceForward)
        shallow = copy.copy(net.shift)
        assert not writes(shallow)[0]
    assert writes(twin.shift)[0]
    assert writes(loaded)[0]


def test_a_forward_assigned_to_the_class_meanwhile():
    """It stays when the guard goes."""
    net = Net()
    original = Shift.forward
    with guard(net):
        Shift.forward = assigned = lambda self, x: x.add_(1)
    assert Shift.forward is assigned
    Shift.forward = original


def test_wrappers_put_over_a_guarded_forward():
    """Another tool's wrapper stays when the guard goes, and finds nothing guarded below it."""
    net = Net()
    calls = []
    with guard(net):
        guarded = Shift.forward

        @functools.wraps(guarded)
        def timed(self, x):
            calls.append(x)
            return guarded(self, x)

        Shift.forward = timed
        assert not writes(net)[0]
        with guard(Net()) as other, guard(net):
            assert not writes(net)[0]
        assert not other.active
    assert Shift.forward is timed
    assert len(calls) == 2
    assert writes(net)[0]
    Shift.forward = guarded  # that tool puts back what it found
    assert writes(net)[0]
    with guard(net):
        assert not writes(net)[0]
    Shift.forward = guarded.__wrapped__


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_torchscript_of_a_guarded_model():
    """It is compiled as if no guard were there; a scripted submodule is left alone."""

    class Relu(nn.Module):
        def forward(self, x):
            return torch.nn.functional.relu(x)

    net = nn.Sequential(Relu(), nn.Linear(3, 3))
    x = torch.randn(3)
    with guard(net):
        scripted = torch.jit.script(net)
        traced = torch.jit.trace(net, x)
    assert torch.equal(scripted(x), net(x))
    assert torch.equal(traced(x), net(x))
    mixed = nn.Sequential(scripted, Shift())
    with guard(mixed):
        assert not writes(mixed)[0]
    with pytest.raises(TypeError, match="scripted"):
        guard(scripted)


def test_compiled_before_and_after():
    """The compiled model is guarded while the guard is there; nothing breaks the graph."""
    net = Net()
    before = torch.compile(net, backend="aot_eager", fullgraph=True)
    expected = net(torch.zeros(3))
    assert writes(before)[0]
    held = guard(net)
    after = torch.compile(net, backend="aot_eager", fullgraph=True)
    for compiled in (before, after, guard_of_compiled(before)):
        written, out = writes(compiled)
        assert not written
        torch.testing.assert_close(out, net(torch.zeros(3)))
        out.sum().backward()
    held.remove()
    for compiled in (before, after):
        written, out = writes(compiled)
        assert written
        torch.testing.assert_close(out, expected)
    torch._dynamo.reset()


def guard_of_compiled(compiled):
    """Guard what `torch.compile` returned, for one call."""

    def call(x):
        with guard(compiled):
            return compiled(x)

    return call


def test_nothing_keeps_a_guarded_model_alive():
    """A model that is dropped without removing the guard is freed at once, and its classes healed."""
    before = traces()
    net = Net()
    net.shift.forward = lambda x: x
    seen = weakref.ref(net)
    held = guard(net)
    gc.disable()
    try:
        del net
        assert seen() is None
        del held
        assert traces() == before
    finally:
        gc.enable()


def test_repr():
    """It says what is guarded."""
    net = Net()
    held = guard(net)
    assert repr(held) == "<guard of Net: 3 modules>"
    held.remove()
    assert repr(held) == "<guard of Net: 3 modules, removed>"
    with guard() as everything:
        assert repr(everything) == "<guard of every module>"


# -- every module -----------------------------------------------------------------------------------


def test_every_module_in_the_block():
    """Those made before, those made inside, their submodules, and direct calls."""
    net = Direct()
    with guard(), record() as log:
        assert not writes(net)[0]
        assert not writes(Net())[0]
        assert not writes(Net().shift.forward)[0]
    assert [m.module.rpartition(".")[2] for m in log] == ["Shift"]
    assert writes(net)[0]
    assert MARK not in vars(net)


def test_every_module_with_a_mode():
    """The innermost block decides, and a guard of the model is nearer still."""
    net = Net()
    with guard(mode="strict"):
        with pytest.raises(InputMutationError):
            net(torch.zeros(3))
        with guard(mode="off"):
            assert writes(net)[0]
        with guard(net, mode="copy"):
            assert not writes(net)[0]
        with pytest.raises(InputMutationError):
            net(torch.zeros(3))


def test_every_module_with_mutable_names():
    """They hold wherever a forward has them."""
    with guard(mutable=("x",)):
        assert writes(Net())[0]


def test_every_module_in_every_thread():
    """Threads that run inside the block are covered, whoever started them."""
    seen = []

    def work():
        seen.append(writes(Net())[0])

    with guard():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [False]


def test_every_module_with_an_assigned_forward():
    """Also one that is assigned inside the block."""
    net = Net()
    with guard():
        assert not writes(net)[0]
        assigned = net.forward = lambda x: x.add_(1)
        for _ in range(2):
            assert not writes(net)[0]
        assert len(net.__dict__["forward"].guards) == 1
    assert net.forward is assigned
    assert writes(net)[0]


def test_every_module_and_hooks():
    """Hooks see plain tensors, and full backward hooks work."""
    net = Shift()
    seen = []

    def see(_, *tensors):
        seen.extend(part for item in tensors for part in (item if type(item) is tuple else (item,)))

    net.register_forward_pre_hook(see)
    net.register_forward_hook(see)
    net.register_full_backward_hook(see)
    x = torch.zeros(3, requires_grad=True)
    with guard():
        net(x).sum().backward()
    assert [type(tensor) for tensor in seen] == [torch.Tensor] * 5
    assert x.grad.tolist() == [2, 2, 2]


def test_every_module_and_the_compiler():
    """A model compiled inside the block is protected; the compiler's own modules are left alone."""
    with guard(), record() as log:
        compiled = torch.compile(Net(), backend="aot_eager", fullgraph=True)
        written, out = writes(compiled)
        out.sum().backward()
    assert not written
    assert list(log) == []
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_every_module_and_torchscript():
    """A class that is guarded already can still be scripted, and scripted modules run."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(3)
    with guard():
        out = net(x)
        assert torch.equal(torch.jit.script(net)(x), out)


def test_somebody_patches_the_call_over():
    """Their patch stays when the guard goes, and ours below it does nothing."""
    before, calls = nn.Module.__call__, []
    with guard():
        guarded = nn.Module.__call__

        def theirs(self, *args):
            calls.append(self)
            return guarded(self, *args)

        nn.Module.__call__ = theirs
        assert not writes(Net())[0]
    assert nn.Module.__call__ is theirs
    calls.clear()
    assert writes(Net())[0]
    assert calls
    with guard():
        assert not writes(Net())[0]
    assert nn.Module.__call__ is theirs
    nn.Module.__call__ = before
