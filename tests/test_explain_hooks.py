"""Under `explain()` autograd works, keeps and releases as it does without it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from safemodule import _explain, _explain_compat, _explain_notes, freeze_inputs
from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from safemodule._explain_backward import _argument_of
from safemodule._explain_hooks import SaveHooks, probing

needs_sight = pytest.mark.skipif(
    not _explain_compat.SEES_HOOKS, reason="this torch does not show the hooks of a thread"
)


@pytest.fixture
def no_gc():
    """Leave everything to reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Exp(torch.autograd.Function):
    """Saves its input and its output, and can be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        _, y = ctx.saved_tensors
        return grad * y


PROGRAMS = {
    "inputs and results": lambda x, w: (x * w).sigmoid().sum(),
    "views": lambda x, w: (x.t()[1:] * w[:, :2].t()[:2]).exp().sum(),
    "custom Function": lambda x, w: (Exp.apply(x) * Exp.apply(w)).sum(),
    "in-place result": lambda x, w: (x * w).exp_().mul(2).sum(),
    "view and in-place": lambda x, w: _write_rows(x * w).sigmoid().sum(),
    "indexing": lambda x, w: (x[[0, 2]] * w[0]).pow(3).sum(),
    "layer norm": lambda x, w: nn.functional.layer_norm(x * w, (3,)).pow(3).sum(),
    "unbind": lambda x, w: torch.stack([r * s for r, s in zip(x, w, strict=True)]).prod(),
    "cumulative": lambda x, w: torch.cat([x, w]).cumprod(0).sum(),
}


def _write_rows(y):
    y[0].mul_(2)
    y[1:] = y[1:] + 1
    return y


def leaves():
    """Return fresh arguments of the programs, the same each time."""
    torch.manual_seed(0)
    return [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def derivatives(program, order):
    """Return the gradients of a program up to an order."""
    given = leaves()
    out = program(*given)
    found = []
    for _ in range(order):
        grads = torch.autograd.grad(out, given, create_graph=True, allow_unused=True)
        found += [g.detach() for g in grads if g is not None]
        out = sum((g * g).sum() for g in grads if g is not None)
        if not out.requires_grad:
            break
    return found


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_derivatives(program, order):
    """Gradients of each order are those without `explain()`, to the last bits."""
    plain = derivatives(program, order)
    with explain():
        found = derivatives(program, order)
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_retained_graph(program):
    """A retained graph gives the same gradient again."""
    with explain():
        given = leaves()
        out = program(*given)
        first = torch.autograd.grad(out, given, retain_graph=True, allow_unused=True)
        second = torch.autograd.grad(out, given, retain_graph=True, allow_unused=True)
        third = torch.autograd.grad(out, given, allow_unused=True)
    assert [g is None for g in first] == [g is None for g in second]
    for a, b, c in zip(first, second, third, strict=True):
        assert a is None or (torch.equal(a, b) and torch.equal(a, c))


def test_second_backward_after_a_write():
    """The graph was right once, and is overwritten before it is used again."""
    with pytest.raises(InplaceError, match="written by zero_"), explain():
        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        y.sum().backward(retain_graph=True)
        y.detach().zero_()
        y.sum().backward()


def test_write_under_no_grad_counts():
    """A write without gradients overwrites as any other does."""
    with pytest.raises(InplaceError, match="written by mul_"), explain():
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()
        with torch.no_grad():
            w.mul_(2)
        loss.backward()


def test_freed_graph():
    """The error about a graph that was freed is PyTorch's own."""
    with pytest.raises(RuntimeError, match="a second time") as info, explain():
        x = torch.ones(3, requires_grad=True)
        y = x.exp().sum()
        y.backward()
        y.backward()
    assert type(info.value) is RuntimeError


def test_saved_values_can_be_read():
    """What a node saved is readable, with the node it came from."""
    with explain():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = y.sin()
    assert torch.equal(y.grad_fn._saved_result, y)
    assert y.grad_fn._saved_result.grad_fn is y.grad_fn
    assert z.grad_fn._saved_self.grad_fn is y.grad_fn


def test_block_ends_before_backward():
    """A graph made in a block is checked after it; later writes were not seen."""
    with explain():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
    y.detach().zero_()
    with pytest.raises(InplaceError, match="where no operation was seen"):
        y.sum().backward()


def build(kept):
    """Build a graph and note which of its tensors are kept alive."""
    x, w = leaves()
    for program in PROGRAMS.values():
        for _ in range(2):
            kept.append(weakref.ref(x))
            x = (x * w).sigmoid() + 0 * program(x, w)
    return x.sum()


def alive(refs):
    """Count what is still alive."""
    return sum(ref() is not None for ref in refs)


@pytest.mark.usefixtures("no_gc")
def test_graph_dies_by_reference_counts():
    """Nothing outlives the graph: no cycle through a node and what it saved."""
    with explain():
        before = count_tensors()
        kept = []
        loss = build(kept)
        del loss
        assert alive(kept) == 0
        assert count_tensors() == before
        kept.clear()
        build(kept).backward()
        assert alive(kept) == 0
        assert count_tensors() == before


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_double_backward_dies_by_reference_counts(program):
    """The graph of a gradient dies as well."""
    with explain():
        before = count_tensors()
        derivatives(program, 2)
        assert count_tensors() == before


@pytest.mark.usefixtures("no_gc")
def test_storages_kept_are_those_of_plain_autograd():
    """While the graph lives, no memory is held that plain autograd would not hold."""

    def held():
        storages = []
        x, w = leaves()
        for _ in range(5):
            a = x * w
            b = a + 1  # saves nothing
            c = b.sigmoid()
            d = c[1:].exp()
            x = torch.cat([d, d[:1]])
            storages += [weak_storage(t) for t in (a, b, c, d)]
        loss = x.sum()
        del a, b, c, d, x, w
        return loss, storages

    loss, plain = held()
    expected = [not s.expired() for s in plain]
    del loss, plain
    with explain():
        loss, found = held()
        assert [not s.expired() for s in found] == expected
    assert 0 < sum(expected) < len(expected)
    del loss


def weak_storage(tensor):
    """Return a reference that does not keep a tensor's memory."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


def count_tensors():
    """Count the tensors that Python knows."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.usefixtures("no_gc")
def test_training_is_flat(monkeypatch):
    """200 steps of training leave nothing behind, in the graph or in the notes."""
    for name in ("_RECENT_MAX", "_SWEEP_MIN"):
        monkeypatch.setattr(_explain_notes, name, 20)  # full after a few steps
    monkeypatch.setattr(_explain, "_notes", _explain_notes.Notes())
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(16, 4)
    counts = []
    with explain():
        for step in range(210):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            if step in {9, 209}:
                counts.append((count_tensors(), sum(1 for _ in gc.get_objects())))
    (tensors, objects), (tensors_after, objects_after) = counts
    assert tensors_after == tensors
    assert objects_after <= objects + 20


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    """Checkpointing works, and computes again what it dropped."""

    def train():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 3))
        x = torch.randn(2, 3, requires_grad=True)
        calls = []
        net[0].register_forward_hook(lambda *_: calls.append(1))
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
        return [x.grad, *(p.grad for p in net.parameters())], len(calls)

    plain, calls = train()
    with explain():
        found, calls_found = train()
    torch.testing.assert_close(found, plain)
    assert calls == calls_found == 2


class WritesWhatItSaved(torch.autograd.Function):
    """Its backward writes a saved tensor, as some do to spare memory."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(grad)


def test_saved_input_of_a_guarded_call():
    """Backward is handed a copy of it, plain: whoever writes that reaches nobody."""
    square = freeze_inputs(WritesWhatItSaved.apply)
    x = torch.full((3,), 2.0, requires_grad=True) * 1
    with explain():
        out = square(x)
        saved = out.grad_fn.saved_tensors[0]
        assert type(saved) is torch.Tensor
        assert saved.data_ptr() != x.data_ptr()
        for _ in range(2):
            (grad,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
            assert grad.tolist() == [4.0] * 3
    assert x.tolist() == [2.0] * 3


def test_value_that_cannot_be_read():
    """Which of a node's values it is, is searched among those that can be read."""
    saved = SaveHooks(_explain_notes.Notes(), lambda *_: None, check_values=False).pack(
        torch.ones(3)
    )

    class Node:
        @property
        def _saved_broken(self):
            raise KeyError("released")

        @property
        def _saved_other(self):
            probing.found.append(saved)
            return saved.tensor

    assert _argument_of(Node(), saved) == ("other", saved.tensor)


@needs_sight
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_with_explain_inside(reentrant):
    """The block may be inside of what is checkpointed."""

    @explain()
    def f(x, w):
        return (x * w).sigmoid().exp()

    def train(g):
        x, w = leaves()
        checkpoint(g, x, w, use_reentrant=reentrant).sum().backward()
        return x.grad, w.grad

    torch.testing.assert_close(train(f), train(f.__wrapped__))


def test_function_inside_of_a_checkpoint():
    """The value that a checkpoint keeps is not taken for one of the node that asks for another."""
    x = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(InplaceError) as info, explain():
        y = checkpoint(lambda t: Exp.apply(t * w), x, use_reentrant=False)
        x.zero_()
        y.sum().backward()
    found = explanation_of(info.value)
    assert found.events[0].text == "saved for backward at version 0"
    assert "checkpoint(" in found.events[0].where.line


def test_save_on_cpu_inside():
    """`save_on_cpu` rules where it is the innermost."""

    def f():
        x, w = leaves()
        with save_on_cpu():
            y = (x * w).sigmoid()
        (y * w).sum().backward()
        return x.grad, w.grad

    plain = f()
    with explain():
        torch.testing.assert_close(f(), plain)


def test_own_hooks_inside():
    """Hooks of the user's own inside of the block see what they always see."""
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return len(packed) - 1

    def unpack(n):
        unpacked.append(n)
        return packed[n]

    with explain():
        x, w = leaves()
        y = x * w
        with saved_tensors_hooks(pack, unpack):
            z = y * w
        z.sum().backward()
    assert len(packed) == 2
    assert sorted(unpacked) == [0, 1]


@needs_sight
def test_own_hooks_outside():
    """Hooks around the block keep what they were given to keep."""
    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t) or t.detach(), lambda t: t):
        with explain():
            x, w = leaves()
            (x * w).sum().backward()
        x * w
    assert len(packed) == 4


def test_allow_mutation_inside():
    """Under `allow_mutation_on_saved_tensors` a write is no error."""
    with explain(), allow_mutation_on_saved_tensors():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).exp())


@needs_sight
@pytest.mark.parametrize("name", ["grad", "vjp", "jacrev", "hessian"])
def test_functional_transforms(name):
    """`torch.func` transforms, which refuse hooks, run inside of a block."""
    with contextlib.ExitStack() as stack:
        import warnings

        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", ".*torch.jit")  # torch's own
        stack.enter_context(explain())
        x = torch.randn(3)
        cube = lambda t: (t**3).sum()
        found = {
            "grad": lambda: torch.func.grad(cube)(x),
            "vjp": lambda: torch.func.vjp(cube, x)[1](torch.ones(()))[0],
            "jacrev": lambda: torch.func.jacrev(cube)(x),
            "hessian": lambda: torch.func.hessian(cube)(x).diag(),
        }[name]()
        w = torch.ones(3, requires_grad=True)
        y = w.exp()
        assert type(y.grad_fn._raw_saved_result) is not None
        y.detach().zero_()
        with pytest.raises(InplaceError):  # the hooks are on again
            y.sum().backward()
    torch.testing.assert_close(found, 6 * x if name == "hessian" else 3 * x**2)


@needs_sight
def test_functional_transforms_refuse_other_hooks():
    """Hooks of somebody else are refused by `torch.func` as they are without a block."""
    with explain(), saved_tensors_hooks(lambda t: t, lambda t: t):
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            torch.func.grad(lambda t: t.sum())(torch.ones(3))
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            torch.func.jacrev(lambda t: t.sum())(torch.ones(3))


def test_forward_mode():
    """Tangents pass through saved values."""
    import torch.autograd.forward_ad as fwd

    def f():
        with fwd.dual_level():
            x = fwd.make_dual(torch.arange(3.0, requires_grad=True), torch.ones(3))
            (grad,) = torch.autograd.grad((x * x).mul(x).sum(), x)
            return fwd.unpack_dual(grad).tangent

    plain = f()
    with explain():
        found = f()
    torch.testing.assert_close(found, plain)


def test_subclass_with_its_own_dispatch():
    """A wrapper subclass is saved as what it is."""
    with explain():
        t = torch.nested.nested_tensor(
            [torch.randn(2, 3), torch.randn(3, 3)], layout=torch.jagged, requires_grad=True
        )
        (t * t).values().sum().backward()
    torch.testing.assert_close(t.grad.values(), 2 * t.values().detach())


def test_wrapper_subclass():
    """Of a wrapper, what is saved is a wrapper again, and is checked."""
    from torch.testing._internal.two_tensor import TwoTensor

    t = TwoTensor(torch.ones(3), torch.ones(3))
    kept = SaveHooks(_explain_notes.Notes(), lambda *_: None, check_values=False).pack(t)
    assert type(kept.tensor) is TwoTensor
    assert kept.tensor is not t
    with explain():
        t = TwoTensor(torch.ones(3), torch.full((3,), 2.0)).requires_grad_()
        y = t.exp()
        assert type(y.grad_fn._saved_result) is TwoTensor
        y.sum().backward()
        assert torch.equal(t.grad.b, torch.full((3,), 2.0).exp())
        y = t.exp()
        y.mul_(2)
        with pytest.raises(InplaceError, match="written by mul_"):
            y.sum().backward()


def test_plain_subclass():
    """Of a subclass without a dispatch of its own, what is saved is its memory."""

    class Named(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Named)
    kept = SaveHooks(_explain_notes.Notes(), lambda *_: None, check_values=False).pack(x)
    assert type(kept.tensor) is torch.Tensor
    assert kept.tensor.data_ptr() == x.data_ptr()


def test_sparse():
    """Sparse tensors are saved and checked."""
    with explain():
        a = torch.eye(3).to_sparse().requires_grad_()
        b = torch.randn(3, 3, requires_grad=True)
        torch.sparse.mm(a, b).sum().backward()
    assert b.grad is not None


def test_data_of_a_parameter():
    """Setting `.data` of a parameter acts on what was saved, as it does without a block."""

    def f():
        p = nn.Parameter(torch.ones(3))
        loss = (p * p).sum()
        p.data = torch.full((3,), 5.0)
        loss.backward()
        return p.grad

    plain = f()
    with explain():
        torch.testing.assert_close(f(), plain)


def test_inference_mode_inside():
    """Operations under inference mode run, and their writes need no version."""
    with explain(), torch.inference_mode():
        x = torch.zeros(3)
        x.add_(1)
        y = torch.stack([x, x])
        y[0].mul_(2)
    assert y.sum() == 9


def test_threads_of_the_engine_have_no_frames():
    """Hooks and mode take what a thread without Python frames gives them: nothing."""
    from safemodule._explain_frames import place_of_save, place_of_write, user_frames

    assert place_of_save(None) == (None, -1, None)
    assert place_of_write(None) == (None, -1, "")
    assert user_frames(None) == []


class Deep(torch.autograd.Function):
    """Runs a backward inside of its backward, so deep that the engine starts threads for it."""

    @staticmethod
    def forward(ctx, x, depth):
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            y = ctx.leaf.exp()
            if depth == 0:
                y.add_(1)  # the write
        ctx.result, ctx.depth = y, depth
        return y.detach()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            y = Deep.apply(ctx.leaf, ctx.depth - 1) if ctx.depth else ctx.result
            y.sum().backward(create_graph=ctx.depth % 2 == 0)
        return grad, None


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph, and no cycle is made
# Not 60: there the failing node is the first thing that a new thread runs, and PyTorch loses the
# error of any hook in such a thread ("returned NULL without setting an exception").
@pytest.mark.parametrize("depth", [5, 59, 61, 120])
def test_threads_of_the_engine(depth):
    """Errors are explained in threads of the engine, where hooks have no frames below them."""
    with pytest.raises(InplaceError, match="written by add_, to version 1") as info, explain():
        Deep.apply(torch.ones(2, requires_grad=True), depth).sum().backward()
    found = explanation_of(info.value)
    assert "by exp, as its result" in found.events[0].text
    assert found.events[1].where.line.endswith("# the write")


def test_versions_of_lists():
    """A list written by one operation counts as it does without a block."""

    def versions():
        tensors = [torch.ones(2), torch.ones(2)]
        torch._foreach_add_(tensors, 1.0)
        torch._foreach_mul_(tensors, tensors)
        return [t._version for t in tensors]

    plain = versions()
    with explain():
        assert versions() == plain == [2, 2]


@pytest.mark.parametrize(
    ("name", "foreach", "grad"),
    list(itertools.product(["SGD", "AdamW"], [False, True], [False, True])),
)
def test_versions_of_optimizers(name, foreach, grad):
    """An optimiser counts its writes as it does without a block."""

    def versions():
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        optimizer = getattr(torch.optim, name)([p], lr=0.1, foreach=foreach)
        with torch.set_grad_enabled(grad):
            optimizer.step()
        return p._version

    plain = versions()
    with explain():
        assert versions() == plain > 0
