"""Modules and hooks: everything `nn.Module` offers, with an in-place write in forward."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from safemodule import SafeModule, freeze_inputs, guard, record
from tests.helpers import Caller, assert_plain, compare_with_clones, same


class Net(nn.Module):
    """Writes its input on the first line."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x, *, scale=2.0):
        x.mul_(scale)
        return self.linear(x) * x


class Safe(SafeModule, Net):
    """Net, guarded. At the top level, so that it can be pickled."""


def one(*, grad=True):
    """Return an input."""
    return (torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(grad),)


def alike(safe, plain, make=one, **options):
    """Compare a guarded module with a plain one that has its parameters."""
    plain.load_state_dict(safe.state_dict())
    pairs = zip(safe.parameters(), plain.parameters(), strict=True)
    outcome = compare_with_clones(safe, plain, make, **options)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    return outcome


# -- hooks -----------------------------------------------------------------------------------------


def run_with_hooks(module, x):
    """Register every kind of hook, run forward and backward; return what the hooks saw."""
    seen = []

    def note(name, *values):
        for value in values:
            for t in value if isinstance(value, tuple) else (value,):
                if isinstance(t, torch.Tensor):
                    seen.append((name, t.detach().clone()))
                    assert_plain(t)

    handles = [
        module.register_forward_pre_hook(lambda _, args: note("pre", args)),
        module.register_forward_pre_hook(
            lambda _, args, kwargs: ((args[0] * 1,), {**kwargs, "scale": 3.0}), with_kwargs=True
        ),
        module.register_forward_hook(lambda _, args, out: note("forward", args, out)),
        module.register_forward_hook(
            lambda _, args, kwargs, out: out * kwargs["scale"], with_kwargs=True, always_call=True
        ),
        module.register_full_backward_pre_hook(lambda _, grad: note("backward pre", grad)),
        module.register_full_backward_hook(lambda _, g_in, g_out: note("backward", g_in, g_out)),
        module.linear.register_forward_pre_hook(lambda _, args: (args[0] + 0,)),
        module.linear.register_full_backward_hook(
            lambda _, g_in, g_out: note("inner", g_in, g_out)
        ),
    ]
    out = module(x)
    out.sum().backward()
    for handle in handles:
        handle.remove()
    return out, seen


class Reference(Net):
    """Net, out of place."""

    def forward(self, x, *, scale=2.0):
        x = x * scale
        return self.linear(x) * x


def test_every_hook():
    """Pre-forward, forward, backward-pre and backward hooks see what they see of a plain module."""
    safe, plain = Safe(), Reference()
    x, other = one()[0], one()[0]
    caller = Caller(x)
    mine, seen = run_with_hooks(safe, x)
    grad, x.grad = x.grad, None
    caller.check()
    theirs, expected = run_with_hooks(plain, other)
    same(mine.detach(), theirs.detach())
    same(grad, other.grad)
    assert [name for name, _ in seen] == [name for name, _ in expected]
    for (name, value), (_, other_value) in zip(seen, expected, strict=True):
        same(value, other_value, name, exact=False)


def test_backward_hook_and_a_write_on_the_first_line():
    """A full backward hook of a plain module forbids this; the guarded one writes a copy."""
    plain, safe = Net(), Safe()
    for module in (plain, safe):
        module.register_full_backward_hook(lambda module, g_in, g_out: None)
    with pytest.raises(RuntimeError, match="BackwardHook"):
        plain(one()[0] * 1)
    x = one()[0]
    caller = Caller(x)
    safe(x).sum().backward()
    assert x.grad is not None
    x.grad = None
    caller.check()


def test_always_call_hook_runs_when_forward_fails():
    """A forward that raises after a write."""

    class Fails(SafeModule):
        def forward(self, x):
            x.add_(1)
            raise ValueError("no")

    called = []
    module = Fails()
    module.register_forward_hook(lambda *_: called.append(1), always_call=True)
    x = torch.ones(2)
    caller = Caller(x)
    with pytest.raises(ValueError, match="no"):
        module(x)
    assert called == [1]
    caller.check()


@pytest.mark.filterwarnings("ignore:Using .torch.compile")
def test_global_hooks():
    """Hooks on every module of the process."""
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append((type(module).__name__, type(args[0])))
    )
    try:
        alike(Safe(), Net(), backward=False)
    finally:
        handle.remove()
    assert ("Safe", torch.Tensor) in seen


def test_a_hook_that_writes():
    """A pre-forward hook runs outside of forward: what it writes is the caller's."""
    module = Safe()
    module.register_forward_pre_hook(lambda _, args: args[0].add_(1) and None)
    x = torch.ones(3)

    def hook(_, args):
        args[0].add_(1)

    module._forward_pre_hooks.clear()
    module.register_forward_pre_hook(hook)
    with record() as log:
        module(x)
    same(x, torch.full((3,), 2.0))
    assert [m.op for m in log] == ["mul_"]


# -- parametrizations and lazy modules -------------------------------------------------------------

PARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrizations(name):
    """Weights that are computed, inside a guarded module."""
    safe, plain = Safe(), Net()
    for module in (safe, plain):
        torch.manual_seed(0)
        PARAMETRIZED[name](module.linear)
        module.eval()
    alike(safe, plain, parameters=(), exact=False)


def test_a_guarded_parametrization():
    """A parametrization is a module of its own: guarded, it may not write the original weight."""

    class Positive(SafeModule):
        def forward(self, weight):
            return weight.abs_()

    linear = nn.Linear(3, 3)
    before = linear.weight.detach().clone()
    parametrize.register_parametrization(linear, "weight", Positive())
    assert (linear.weight >= 0).all()
    same(linear.parametrizations.weight.original.detach(), before)
    linear(torch.ones(3)).sum().backward()
    assert linear.parametrizations.weight.original.grad is not None


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_modules():
    """Shapes inferred from the first handle."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.LazyLinear(4)
            self.norm = nn.LazyBatchNorm1d()

        def forward(self, x):
            x.mul_(2)
            return self.norm(self.linear(x))

    safe = type("Safe", (SafeModule, Lazy), {})()
    x = one()[0]
    caller = Caller(x)
    safe(x)
    caller.check()
    assert safe.linear.weight.shape == (4, 3)
    assert type(safe.linear) is nn.Linear
    plain = Lazy()
    plain(one()[0].detach())
    alike(safe, plain)


# -- state, copies and other processes -------------------------------------------------------------


def test_state_dict():
    """A state dict has no key of ours, and goes both ways between guarded and plain."""
    safe, plain = Safe(), Net()
    assert list(safe.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        safe.linear.weight.fill_(0.5)
    plain.load_state_dict(safe.state_dict())
    same(plain.linear.weight.detach(), safe.linear.weight.detach())
    safe.load_state_dict(Net().state_dict(), assign=True)


def test_save_and_load():
    """`torch.save` of the state and of the whole module."""
    safe = Safe()
    buffer = io.BytesIO()
    torch.save(safe.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert list(loaded) == ["linear.weight", "linear.bias"]
    buffer = io.BytesIO()
    torch.save(safe, buffer)
    buffer.seek(0)
    alike(torch.load(buffer, weights_only=False), Net())


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "copy"])
def test_copies_are_guarded(how):
    """Copies of a guarded module are guarded."""
    safe = Safe()
    copied = pickle.loads(pickle.dumps(safe)) if how == "pickle" else getattr(copy, how)(safe)
    assert type(copied) is Safe
    alike(copied, Net())


def test_spawned_process(tmp_path):
    """A guarded module sent to another process, which calls it."""
    import torch.multiprocessing as mp

    safe, path = Safe(), tmp_path / "out.pt"
    process = mp.get_context("spawn").Process(target=call_and_save, args=(safe, str(path)))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    out, x = torch.load(path, weights_only=True)
    same(x, one(grad=False)[0])
    same(out, Net()(one(grad=False)[0]).detach())


def call_and_save(module, path):
    """Run in the child."""
    (x,) = one(grad=False)
    torch.save((module(x).detach(), x), path)


def test_module_methods():
    """`to`, `half`, `train`, `apply`, `named_modules`, `requires_grad_`, `zero_grad`, `extra_repr`."""
    safe, plain = Safe(), Net()
    assert repr(safe).replace("Safe", "Net") == repr(plain)
    assert [name for name, _ in safe.named_modules()] == [name for name, _ in plain.named_modules()]
    for change in (
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.float(),
        lambda m: m.eval(),
        lambda m: m.train(),
        lambda m: m.apply(lambda part: None),
        lambda m: m.requires_grad_(requires_grad=False),
        lambda m: m.requires_grad_(),
    ):
        change(safe)
        change(plain)
    safe.zero_grad()
    alike(safe, plain)


def test_module_lists_and_sequentials_inside():
    """Containers of modules, and a guarded module in a Sequential."""

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
            self.tail = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3), nn.Dropout(0.0))
            self.named = nn.ModuleDict({"act": nn.LeakyReLU(inplace=True)})

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) + x
            return self.named["act"](self.tail(x))

    safe = type("Safe", (SafeModule, Stack), {})()
    alike(safe, Stack(), parameters=())
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Identity(), Safe(), nn.ReLU(inplace=True))
    plain = nn.Sequential(nn.Identity(), Net(), nn.ReLU(inplace=True))
    alike(chain, plain)


# -- modules of torch that look at their input -----------------------------------------------------


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_modules(kind, packed):
    """Recurrent layers on handles and on packed sequences of them, and a written state."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn = kind(3, 4, batch_first=True)
            self.writes = True

        def forward(self, x, lengths, state):
            sequence = pack_padded_sequence(x, lengths, batch_first=True) if packed else x
            first = (state, state.clone()) if kind is nn.LSTM else state
            out, _ = self.rnn(sequence, first)
            if self.writes:
                state.zero_()
            if packed:
                out, _ = pad_packed_sequence(out, batch_first=True)
            return out

    def make():
        x = torch.linspace(-1, 1, 24).reshape(2, 4, 3).requires_grad_()
        return x, torch.tensor([4, 2]), torch.ones(1, 2, 4)

    safe = type("Safe", (SafeModule, Recurrent), {})()
    plain = Recurrent()
    plain.load_state_dict(safe.state_dict())
    plain.writes = False  # autograd has saved the state
    outcome = compare_with_clones(safe, plain, make, exact=False)
    assert [m.op for m in outcome.writes] == ["zero_"]


def test_a_packed_sequence_as_input():
    """A PackedSequence of the caller's arrives as one, of handles."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn = nn.GRU(3, 4)

        def forward(self, sequence):
            sequence.data.mul_(2)
            out, _ = self.rnn(sequence)
            return out.data

    def make():
        x = torch.linspace(-1, 1, 18).reshape(3, 2, 3).requires_grad_()
        return (pack_padded_sequence(x, torch.tensor([3, 2])),)

    safe = type("Safe", (SafeModule, Reads), {})()
    (packed,) = make()
    caller = Caller(packed.data)
    out = safe(packed)
    caller.check()
    (other,) = make()
    plain = Reads()
    expected = plain(type(other)(other.data * 1, *other[1:]))
    same(out.detach(), expected.detach())


ATTENTION = {
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True),
    "Transformer": lambda: nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_on_handles(name, training):
    """Attention modules, in training and in the inference fast path, on a handle."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = ATTENTION[name]().train(training)

        def forward(self, x):
            if name == "MultiheadAttention":
                y = self.inner(x, x, x)[0]
            elif name == "TransformerEncoderLayer":
                y = self.inner(x)
            else:
                y = self.inner(x, x)
            x.mul_(2)
            return y + x

    def make():
        return (torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_(training),)

    safe = type("Safe", (SafeModule, Attends), {})().train(training)
    plain = Attends().train(training)
    plain.load_state_dict(safe.state_dict())
    with torch.set_grad_enabled(training):
        outcome = compare_with_clones(
            safe, lambda x: plain(x), make, reference=None if not training else _no_write(plain),
            backward=training, exact=False, strides=False,
        )  # fmt: skip
    assert [m.op for m in outcome.writes] == ["mul_"]


def _no_write(plain):
    def reference(x):
        inner = plain.inner
        if isinstance(inner, nn.MultiheadAttention):
            y = inner(x, x, x)[0]
        elif isinstance(inner, nn.TransformerEncoderLayer):
            y = inner(x)
        else:
            y = inner(x, x)
        return y + x * 2

    return reference


def test_attention_fast_path_is_not_taken_on_handles():
    """The fused kernel of `MultiheadAttention` in eval asks `has_torch_function`: see the docs.

    On handles the ordinary path runs, with equal results; behind a `SafeModule` that has computed
    something first, the tensors are plain, and the fused kernel runs.
    """
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)

    def kernels(function):
        with torch.no_grad(), torch.profiler.profile() as profile:
            out, _ = function(x)
        names = {event.key for event in profile.key_averages()}
        return out, "aten::_native_multi_head_attention" in names

    on_handle = freeze_inputs(lambda x: attention(x, x, x, need_weights=False))
    computed = freeze_inputs(lambda x: attention(*[x + 0] * 3, need_weights=False))
    plain, fused = kernels(lambda x: attention(x, x, x, need_weights=False))
    assert fused
    out, fused = kernels(on_handle)
    assert not fused
    same(out, plain, exact=False)
    out, fused = kernels(computed)
    same(out, plain, exact=False)


def test_guard_reaches_every_hooked_module():
    """`guard(model)` keeps hooks, and hooks keep their order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    seen = []
    model[1].register_forward_pre_hook(lambda *_: seen.append("pre"))
    model[1].register_forward_hook(lambda *_: seen.append("post"))
    x = one()[0]
    expected = model(x)
    seen.clear()
    with guard(model), record() as log:
        same(model(x).detach(), expected.detach())
    assert seen == ["pre", "post"]
    assert [m.op for m in log] == ["relu(inplace=True)"]


# -- data loading ----------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """Rows of one tensor; each worker has its own copy of the module."""

    def __init__(self, module):
        self.data = torch.arange(12.0).reshape(4, 3)
        self.module = module

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.module(self.data[i])


class Normalises(SafeModule):
    """A transform that works in place."""

    def forward(self, row):
        row.sub_(row.mean()).div_(row.std())
        return row


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    """A guarded transform in the main process and in workers: the data set stays as it is."""
    rows = Rows(Normalises())
    caller = Caller(rows.data)
    loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=workers)
    for _ in range(2):
        batches = torch.cat(list(loader))
        same(batches, torch.tensor([[-1.0, 0.0, 1.0]]).expand(4, 3))
    caller.check()


def test_memory_of_workers():
    """Tensors in shared memory, as a loader's workers return them, as inputs."""
    x = torch.ones(3).share_memory_()
    module = Normalises()
    caller = Caller(x)
    module(x + torch.arange(3.0))
    out = freeze_inputs(lambda t: t.add_(1))(x)
    same(out, torch.full((3,), 2.0))
    assert x.is_shared()
    assert not out.is_shared()
    caller.check()
