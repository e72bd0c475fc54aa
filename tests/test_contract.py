"""The contract, point by point (C1 to C8). What each point means for many modules: `test_zoo.py`."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import pytest
import torch
from torch import nn

from safemodule import (
    InputMutationError,
    InputMutationWarning,
    SafeModule,
    freeze_inputs,
    mode,
    record,
)
from tests.helpers import Caller, assert_plain, forward_of, line_of, same


class Writes(SafeModule):
    """Writes all of its arguments."""

    def forward(self, x, batch=None, *rest, **named):
        x.add_(1)  # C5
        total = x.sum()
        if batch is not None:
            batch["mask"].logical_not_()
            batch["new"] = 1
            total = total + batch["states"][1][0].mul_(2).sum()
        for item in rest:
            item.zero_()
        for item in named.values():
            item.fill_(2)
        return total


def arguments(grad=False):
    """Return arguments of every kind."""
    x = torch.ones(2, 3, requires_grad=grad)
    batch = {"mask": torch.zeros(4, dtype=torch.bool), "states": [0, (torch.ones(2), 1)]}
    return (x, batch, torch.ones(1), torch.ones(2)), {"scale": torch.ones(3), "k": torch.ones(4)}


# -- C1: the caller is untouched -------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_c1_the_caller_is_untouched(grad):
    """Values, shape, strides, flags, `_version`, keys and items, however an argument is passed."""
    args, kwargs = arguments(grad)
    caller = Caller(args, kwargs)
    Writes()(*args, **kwargs)
    caller.check()


def test_c1_when_forward_raises():
    """Also when forward raises half-way."""

    @freeze_inputs
    def forward(x, batch):
        x.add_(1)
        batch.clear()
        raise KeyError("half-way")

    x, batch = torch.zeros(2), {"x": torch.zeros(2)}
    caller = Caller(x, batch)
    with pytest.raises(KeyError, match="half-way"):
        forward(x, batch)
    caller.check()


def test_c1_after_backward():
    """Also when backward runs, twice."""
    x = torch.ones(2, 3, requires_grad=True)
    out = forward_of(lambda x: x.mul_(2).pow(3))(x)
    caller = Caller(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    caller.check()
    assert x.grad.tolist() == [[48.0] * 3] * 2


def test_c1_a_requires_grad_leaf_may_be_written():
    """Plain PyTorch refuses the write of a leaf; on a copy it succeeds and has a gradient."""

    def forward(x):
        x += 1
        return x.pow(2)

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        forward(x)
    forward_of(forward)(x).sum().backward()
    assert x.tolist() == [1, 1]
    assert x.grad.tolist() == [4, 4]


def test_c1_inference_tensors():
    """They have no version counter, and are protected all the same."""
    with torch.inference_mode():
        x = torch.ones(2)
    out = forward_of(lambda x: x.add_(1))(x)
    assert x.tolist() == [1, 1]
    assert out.tolist() == [2, 2]
    with torch.inference_mode():
        assert forward_of(lambda x: x[0].add_(1) + x)(x).tolist() == [4, 3]
    assert x.tolist() == [1, 1]


# -- C2: the module sees what it wrote -------------------------------------------------------------


def test_c2_views_and_aliases_included():
    """Everything that is one input to the module stays one."""

    def forward(x, again, batch):
        assert x is again is batch["x"]
        v = x[0]
        again.add_(1)
        return x * 1, v * 1, batch["x"] * 1

    x = torch.zeros(2, 2)
    a, b, c = forward_of(forward)(x, x, {"x": x})
    assert (a.tolist(), b.tolist(), c.tolist()) == ([[1, 1]] * 2, [1, 1], [[1, 1]] * 2)


# -- C3: nothing is copied until it is written ------------------------------------------------------


def allocations(function, *args):
    """Return the sizes of all allocations that a function makes."""
    function(*args)  # first calls fill memos
    with torch.profiler.profile(profile_memory=True) as profile:
        out = function(*args)
    del out
    return sorted(
        event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0
    )


LARGE = 1 << 20
SMALL = 1 << 12


def test_c3_reading_costs_no_memory():
    """Views, shapes and reductions of a large input allocate nothing of its size."""

    def forward(x, batch):
        v = x[1:].t()
        return v.shape, len(batch["y"]), batch["y"].view(-1)[0] * 1

    x, y = torch.zeros(2, LARGE), torch.zeros(LARGE)
    sizes = allocations(forward_of(forward), x, {"y": y})
    assert sum(sizes) < 1000


def test_c3_reading_shares_the_callers_memory():
    """What the module reads is the caller's memory itself."""
    seen = []

    def forward(x):
        seen.append(torch._C._is_alias_of(x, outer))
        return x.sum()

    outer = torch.zeros(8)
    forward_of(forward)(outer)
    assert seen == [True]


def test_c3_a_write_copies_the_written_input_only():
    """K of n inputs written: exactly the bytes of those k."""

    def forward(a, b, c, d):
        b.add_(1)
        d[0] = 1.0
        return a.shape, c.shape

    inputs = [torch.zeros(LARGE * k) for k in (1, 2, 3, 4)]
    with record() as log:
        sizes = allocations(forward_of(forward), *inputs)
    assert [size for size in sizes if size >= LARGE] == [LARGE * 2 * 4, LARGE * 4 * 4]
    assert {m.argument: m.bytes_copied for m in log} == {
        "b": LARGE * 2 * 4 * 2,  # called twice
        "d": LARGE * 4 * 4 * 2,
    }


@pytest.mark.parametrize(
    "cut",
    [
        lambda base: base[100 : 100 + SMALL],
        lambda base: base[: 2 * SMALL : 2],
        lambda base: base.view(-1, 4)[:SMALL, 1],
        lambda base: base[:1].expand(SMALL),
    ],
    ids=["slice", "strided", "column", "expanded"],
)
def test_c3_a_slice_of_a_large_storage_costs_the_slice(cut):
    """Never the larger base storage."""
    base = torch.zeros(LARGE)
    with record() as log:
        sizes = allocations(forward_of(lambda x: x.add_(1).numel()), cut(base))
    assert [size for size in sizes if size >= 1000] == [SMALL * 4]
    assert log[0].bytes_copied == SMALL * 4 * log[0].count
    assert not base.any()


def test_c3_writes_in_a_loop_cost_one_copy():
    """The copy is the module's own from then on."""

    def forward(x):
        for i in range(50):
            x[i] = 1.0
            x.mul_(2)
        return x.numel()

    sizes = allocations(forward_of(forward), torch.zeros(LARGE))
    assert [size for size in sizes if size >= SMALL] == [LARGE * 4]


# -- C4: a write never breaks a gradient -----------------------------------------------------------


def test_c4_a_loop_that_reads_and_writes():
    """A mask is read and written T times; every gradient is that of the value of its step."""

    def forward(w, mask):
        total = 0.0
        for i in range(10):
            total = total + (w * mask * (i + 1)).sum()
            mask[i] = 0.0
        return total

    w, mask = torch.ones(10, requires_grad=True), torch.ones(10)
    forward_of(forward)(w, mask).backward()
    assert w.grad.tolist() == [sum(range(1, i + 2)) for i in range(10)]


def test_c4_what_is_handed_to_another_guarded_call():
    """A value that an inner guarded call saved is not overwritten by the outer."""
    inner = forward_of(lambda a: a * a)

    def forward(x):
        x.mul_(2)
        y = inner(x)
        x.add_(1)
        return y

    x = torch.ones(3, requires_grad=True)
    forward_of(forward)(x).sum().backward()
    assert x.grad.tolist() == [8, 8, 8]


@pytest.mark.parametrize("way", ["identity", "save_on_cpu"])
def test_c4_under_saved_tensor_hooks_that_keep_what_they_are_given(way):
    """There it is as after a manual clone: PyTorch itself skips its version check under hooks.

    Finding out that a hook kept the very tensor would cost a tenth of a microsecond at each
    operation. Hooks that copy or recompute (checkpoints, `save_on_cpu` of CUDA tensors) are right.
    """

    def forward(x):
        y = x.exp() * x
        x.mul_(2)
        return y

    grads = []
    for function in (forward_of(forward), lambda x: forward(x.clone())):
        hooks = {
            "identity": torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
            "save_on_cpu": torch.autograd.graph.save_on_cpu(),  # keeps what is on the CPU already
        }
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        with hooks[way]:
            out = function(x)
        grads.append(torch.autograd.grad(out.sum(), x)[0])
    same(*grads)


def test_c4_under_saved_tensor_hooks_that_copy():
    """Where hooks keep a copy of the value, every gradient is right."""

    def forward(x):
        y = x.exp() * x
        x.mul_(2)
        z = x * x
        x.add_(1)
        return y + z

    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        out = forward_of(forward)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    same(grad, (2 * x.exp() + 8 * x).detach(), exact=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # torch's own
def test_c4_forward_mode():
    """Tangents flow through writes too."""
    import torch.autograd.forward_ad as fwd

    def forward(x):
        y = x * x
        x.mul_(3)
        return y + x

    with fwd.dual_level():
        x = fwd.make_dual(torch.tensor([2.0]), torch.tensor([1.0]))
        out = fwd.unpack_dual(forward_of(forward)(x))
        assert (out.primal.tolist(), out.tangent.tolist()) == ([10], [7])
        assert fwd.unpack_dual(x).primal.tolist() == [2]


# -- C5: every write is on record ------------------------------------------------------------------


def test_c5_a_record_is_complete():
    """Op, path, module, shape, dtype, device, file, line, function, source, bytes, count."""
    net = Writes()
    with record() as log:
        for _ in range(3):
            net(torch.ones(2, 3))
    (m,) = log
    assert m.to_dict() == {
        "op": "add_",
        "argument": "x",
        "module": f"{__name__}.Writes",
        "shape": [2, 3],
        "dtype": "float32",
        "device": "cpu",
        "filename": __file__,
        "lineno": line_of("C5"),
        "function": "forward",
        "line": "x.add_(1)  # C5",
        "bytes_copied": 3 * 2 * 3 * 4,
        "count": 3,
        "kind": "tensor",
    }


def test_c5_argument_paths():
    """Positional, keyword, variadic and nested."""
    args, kwargs = arguments()
    with record() as log:
        Writes()(*args, **kwargs)
    assert [(m.op, m.argument) for m in log] == [
        ("add_", "x"),
        ("logical_not_", "batch['mask']"),
        ("__setitem__", "batch['new']"),
        ("mul_", "batch['states'][1][0]"),
        ("zero_", "rest[0]"),
        ("zero_", "rest[1]"),
        ("fill_", "scale"),
        ("fill_", "k"),
    ]


class Inner(nn.Module):
    """Hides a write in library code."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(x)  # inner


def test_c5_the_line_is_the_users_own():
    """Writes inside torch, lambdas, multi-line statements and executed strings."""

    def forward(x):
        nn.functional.relu(x, inplace=True)  # functional
        nn.Sequential(nn.ReLU(inplace=True))(x)  # sequential
        nn.init.zeros_(x)  # init
        sorted([x], key=lambda t: t.add_(1).sum())  # lambda
        torch.add(
            x,
            1,
            out=x,
        )
        [t.mul_(2) for t in (x,)]  # comprehension
        exec("x.sub_(1)", {"x": x})
        return Inner()(x)

    with record() as log:
        forward_of(forward)(torch.ones(2))
    lines = [(m.op, m.lineno) for m in log if m.filename == __file__ and m.op != "add(out=)"]
    assert lines == [
        ("relu(inplace=True)", line_of("functional")),
        ("relu(inplace=True)", line_of("sequential")),
        ("zero_", line_of("init")),
        ("add_", line_of("lambda")),
        ("mul_", line_of("comprehension")),
        ("relu(inplace=True)", line_of("inner")),
    ]
    (multi,) = [m for m in log if m.op == "add(out=)"]
    assert line_of("lambda") < multi.lineno < line_of("comprehension")
    (string,) = [m for m in log if m.op == "sub_"]
    assert (string.filename, string.lineno) == ("<string>", 1)


def test_c5_an_optimiser_step():
    """An optimiser that writes an input is reported at the line that called it."""

    def forward(x):
        x.grad = torch.ones_like(x)
        optimiser = torch.optim.SGD([x], lr=0.1)
        optimiser.step()  # step
        return x * 1

    x = torch.ones(2, requires_grad=True)
    with record() as log:
        forward_of(forward)(x)
    assert log
    assert {m.lineno for m in log} == {line_of("step")}
    assert x.tolist() == [1, 1]


def test_c5_a_warning_points_at_the_users_line():
    """File and line of the warning are those of the record, as `warnings.warn` there would give."""

    def forward(x, batch):
        x.add_(1)  # warned
        nn.functional.relu(x, inplace=True)  # warned in torch
        batch["k"] = x  # warned container

    with mode("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):  # once for each line, by the default filters
            forward_of(forward)(torch.zeros(2), {})
    assert [(w.category, w.filename, w.lineno) for w in seen] == [
        (InputMutationWarning, __file__, line_of("warned")),
        (InputMutationWarning, __file__, line_of("warned in torch")),
        (InputMutationWarning, __file__, line_of("warned container")),
    ]
    assert [w.message.mutation.op for w in seen] == ["add_", "relu(inplace=True)", "__setitem__"]


def test_c5_a_warning_that_is_an_error_stops_the_module():
    """With `-W error` the warning is raised at the line; the caller is untouched."""
    x = torch.zeros(2)
    caller = Caller(x)
    with mode("warn"), warnings.catch_warnings():
        warnings.simplefilter("error", InputMutationWarning)
        with pytest.raises(InputMutationWarning, match="argument x"):
            forward_of(lambda x: x.add_(1))(x)
    caller.check()


# -- C6: strict ------------------------------------------------------------------------------------


def test_c6_strict_raises_at_the_line_before_anything_has_changed():
    """The traceback ends in the user's line; the module's own view of its input is unchanged."""
    seen = []

    def forward(x):
        try:
            x.add_(1)  # C6
        except InputMutationError as error:
            seen.append((x.tolist(), error.__traceback__.tb_lineno))
            raise

    x = torch.zeros(2)
    caller = Caller(x)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(forward)(x)
    caller.check()
    assert seen == [([0, 0], line_of("C6"))]
    m = caught.value.mutation
    assert (m.op, m.argument, m.lineno) == ("add_", "x", line_of("C6"))


def test_c6_containers():
    """A changed entry is refused with the container as it was, for each way to change it."""
    ways = {
        "__setitem__": lambda b: b.__setitem__("k", 1),
        "pop": lambda b: b.pop("x"),
        "update": lambda b: b.update(k=1),
        "clear": lambda b: b.clear(),
        "setdefault": lambda b: b.setdefault("k", 1),
        "__delitem__": lambda b: b.__delitem__("x"),
        "popitem": lambda b: b.popitem(),
        "__ior__": lambda b: b.__ior__({"k": 1}),
    }
    for op, way in ways.items():
        batch = {"x": torch.ones(1)}
        caller = Caller(batch)
        left = []

        def forward(batch):
            try:
                way(batch)
            finally:
                left.append(dict(batch).keys())

        with mode("strict"), pytest.raises(InputMutationError) as caught:
            forward_of(forward)(batch)
        caller.check()
        assert caught.value.mutation.op == op
        assert list(left[0]) == ["x"]


def test_c6_lists_and_dataclasses():
    """Likewise."""

    @dataclasses.dataclass
    class Batch:
        x: object

    cases = [
        ([1, 2], lambda xs: xs.append(3), "append", "arg"),
        ([1, 2], lambda xs: xs.sort(), "sort", "arg"),
        ([1, 2], lambda xs: xs.__setitem__(0, 3), "__setitem__", "arg[0]"),
        (Batch(1), lambda b: setattr(b, "x", 2), "__setattr__", "arg.x"),
        (Batch(1), lambda b: delattr(b, "x"), "__delattr__", "arg.x"),
        (collections.OrderedDict(a=1), lambda d: d.move_to_end("a"), "move_to_end", "arg['a']"),
    ]
    for value, way, op, argument in cases:
        caller = Caller(value)
        with mode("strict"), pytest.raises(InputMutationError) as caught:
            forward_of(lambda arg: way(arg))(value)
        caller.check()
        assert (caught.value.mutation.op, caught.value.mutation.argument) == (op, argument)


def test_c6_the_text_names_all():
    """What would change which argument of which module where, and possible fixes, best first."""

    class Decoder(SafeModule, mode="strict"):
        def forward(self, batch):
            batch["mask"][0] = True  # text

    with pytest.raises(InputMutationError) as caught:
        Decoder()({"mask": torch.zeros(1024, 21, dtype=torch.bool)})
    text = str(caught.value)
    assert "__setitem__ would write argument batch['mask'] (bool[1024, 21] cpu)" in text
    assert "Decoder" in text
    assert f'{__file__}:{line_of("text")} in forward: batch["mask"][0] = True' in text
    fixes = [
        line.strip()[:3] for line in text.splitlines() if line.startswith("  ") and ". " in line
    ]
    assert fixes[:3] == ["1. ", "2. ", "3. "]
    assert "torch.where(condition, value, batch['mask'])" in text
    assert "batch: Mutable[...]" in text


# -- C7: nothing leaks and nothing breaks ----------------------------------------------------------


class Net(nn.Module):
    """An ordinary network."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x, scale=1.0, *, bias=0.0):
        return self.net(x) * scale + bias


class SafeNet(SafeModule, Net):
    """The same, guarded."""


def test_c7_as_a_plain_module():
    """Equal outputs, gradients, buffers, state dicts and names; train and eval."""
    torch.manual_seed(0)
    plain, guarded = Net(), SafeNet()
    guarded.load_state_dict(plain.state_dict())
    x = torch.randn(5, 4)
    for training in (True, False):
        plain.train(training)
        guarded.train(training)
        a, b = plain(x, bias=1.0), guarded(x, bias=1.0)
        same(a.detach(), b.detach())
        assert_plain(b)
        for net, out in ((plain, a), (guarded, b)):
            net.zero_grad()
            out.sum().backward()
        for (name, p), (other, q) in zip(
            plain.named_parameters(), guarded.named_parameters(), strict=True
        ):
            assert name == other
            same(p.grad, q.grad)
    assert list(plain.state_dict()) == list(guarded.state_dict())
    for name, value in plain.state_dict().items():
        same(value, guarded.state_dict()[name])


def test_c7_forward_hooks():
    """Pre-hooks and hooks run as on any module, outside of the guard."""
    seen = []
    net = forward_of(lambda x: x.mul_(2))
    net.register_forward_pre_hook(lambda m, args: seen.append(("pre", type(args[0]))))
    net.register_forward_hook(
        lambda m, args, out: seen.append(("post", type(out), args[0].tolist()))
    )
    x = torch.ones(1)
    net(x)
    assert seen == [("pre", torch.Tensor), ("post", torch.Tensor, [1])]


def test_c7_a_pre_hook_may_replace_the_inputs():
    """What it returns is what is guarded."""
    net = forward_of(lambda x: x.mul_(2))
    other = torch.full((1,), 5.0)
    net.register_forward_pre_hook(lambda m, args: (other,))
    assert net(torch.ones(1)).tolist() == [10]
    assert other.tolist() == [5]


def test_c7_backward_hooks_on_the_guarded_module():
    """Full backward hooks wrap the inputs in a custom Function; a write of those works all the same."""
    seen = []
    net = forward_of(lambda x: x.mul_(2) * 1)
    net.register_full_backward_hook(
        lambda m, grad_in, grad_out: seen.append((grad_in[0].tolist(), grad_out[0].tolist()))
    )
    x = torch.ones(2, requires_grad=True)
    net(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert seen == [([2, 2], [1, 1])]


@pytest.mark.parametrize("reentrant", [False, True])
def test_c7_a_checkpointed_guarded_module(reentrant):
    """It runs twice; gradients of inputs and parameters are those of one plain run."""
    from torch.utils.checkpoint import checkpoint

    linear = nn.Linear(2, 2)

    def forward(x):
        y = linear(x)
        x.mul_(2)
        return y.tanh() * x

    def reference(x):
        return linear(x).tanh() * (x * 2)

    grads = []
    for run in (lambda x: checkpoint(forward_of(forward), x, use_reentrant=reentrant), reference):
        x = torch.ones(1, 2, requires_grad=True)
        linear.zero_grad()
        run(x).sum().backward()
        grads.append((x.grad, linear.weight.grad.clone()))
    for mine, theirs in zip(*grads, strict=True):
        same(mine, theirs, exact=False)


def test_c7_symbolic_tracing():
    """`torch.fx` traces through a guarded forward, and `make_fx` finds a clone and the write."""
    from torch.fx.experimental.proxy_tensor import make_fx

    class Net(SafeModule):
        def forward(self, x):
            return x.relu() + 1

    assert torch.fx.symbolic_trace(Net())(torch.ones(2)).tolist() == [2, 2]
    graph = make_fx(freeze_inputs(lambda x: x.mul_(2) + 1))(torch.ones(2))
    x = torch.ones(2)
    assert graph(x).tolist() == [3, 3]
    assert x.tolist() == [1, 1]


def test_c7_what_was_kept_by_a_call_that_raised():
    """A handle of a call that ended by an exception comes out plain later."""

    class Keeps(SafeModule):
        kept = None

        def forward(self, x, fail=False):
            if fail:
                self.kept = x
                raise ValueError("mine")
            return self.kept

    net, x = Keeps(), torch.ones(2)
    with pytest.raises(ValueError, match="mine"):
        net(x, fail=True)
    out = net(torch.zeros(1))
    assert_plain(out)
    assert out is x


def test_c7_a_leaf_is_a_leaf():
    """What one can do with the caller's leaf in a plain module."""
    x = torch.ones(2, requires_grad=True)
    seen = []

    def forward(h):
        h.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
        (h * 2).sum().backward()
        return h.grad_fn

    assert forward_of(forward)(x) is None
    assert x.grad.tolist() == [2, 2]
    assert seen == [[2, 2]]


def test_c7_backward_for_named_inputs_is_a_limit():
    """`y.backward(inputs=[x])`: `y` is a plain tensor, so nobody sees that `x` is a handle.

    The gradient goes to the handle, where a plain module would fill the caller's `x.grad`.
    """
    x = torch.ones(2, requires_grad=True)

    def forward(h):
        (h * 2).sum().backward(inputs=[h])

    forward_of(forward)(x)
    assert x.grad is None


def test_c7_unwritten_inputs_are_the_same_objects():
    """Tensors, and containers that were not changed."""
    x, batch, items, pair = torch.ones(1), {"x": torch.ones(2)}, [torch.ones(3)], (torch.ones(4), 1)
    out = forward_of(lambda *args: args)(x, batch, items, pair)
    assert out[0] is x
    assert out[1] is batch
    assert out[2] is items
    assert out[3] is pair
    assert forward_of(lambda b: b["x"])(batch) is batch["x"]


def test_c7_outputs_that_are_no_tensors():
    """Pass through as they are."""
    thing = object()
    for value in (None, 1, 1.5, "s", b"b", thing, {1, 2}, range(3), torch.float32, nn.ReLU, ...):
        assert forward_of(lambda x, value=value: value)(torch.ones(1)) is value


def test_c7_arguments_that_are_no_tensors():
    """Likewise."""
    for value in (None, 1, "s", object(), {1}, range(3), nn.ReLU(), torch.Size([1]), lambda: 1):
        assert forward_of(lambda value: value)(value) is value


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_c7_tracing_and_scripting_of_the_surroundings():
    """A guarded function can be traced by make_fx and by torch.func."""
    from torch.func import grad, vmap

    net = forward_of(lambda x: x.mul_(2).sum())
    assert grad(lambda x: net(x))(torch.ones(3)).tolist() == [2, 2, 2]
    x = torch.ones(4, 3)
    assert vmap(net)(x).tolist() == [6] * 4
    assert x.tolist() == [[1] * 3] * 4


def test_c7_tensor_subclasses_work():
    """A user's own subclass arrives as itself, cloned, and comes back."""

    class Mine(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Mine)
    out = forward_of(lambda x: x.add_(1))(x)
    assert type(out) is Mine
    assert out.tolist() == [2, 2]
    assert x.tolist() == [1, 1]
    assert forward_of(lambda x: x)(x) is x


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.ones(3, device="meta"),
    ],
    ids=["sparse", "quantized", "nested", "meta"],
)
@pytest.mark.filterwarnings("ignore")
def test_c7_other_layouts_work(make):
    """They pass or are cloned; unwritten they are the caller's object."""
    x = make()
    assert forward_of(lambda x: x)(x) is x
    out = forward_of(lambda x: x.clone())(x)
    assert type(out) is type(x)
    assert out.shape == x.shape or out.layout is torch.jagged


def ragged(*, requires_grad=False):
    """Return a nested tensor of the strided layout."""
    rows = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(rows, requires_grad=requires_grad)


@pytest.mark.filterwarnings("ignore::UserWarning")  # prototypes, says torch
def test_nested_tensors_are_redirected():
    """Written whole and through their rows, at the top and in containers, by name and on record."""

    @freeze_inputs
    def forward(t, batch):
        t.add_(1)
        t.mul_(2)
        assert [row.tolist() for row in t.unbind()] == [[4, 4], [4, 4, 4]]
        for row in batch["rows"].unbind():
            row.sub_(1)
        return t, batch["rows"]

    t, rows = ragged(), ragged()
    with record() as log:
        out, changed = forward(t, {"rows": rows})
    assert [row.tolist() for row in out.unbind()] == [[4, 4], [4, 4, 4]]
    assert [row.tolist() for row in changed.unbind()] == [[0, 0], [0, 0, 0]]
    for x in (t, rows):
        assert [row.tolist() for row in x.unbind()] == [[1, 1], [1, 1, 1]]
    assert {(m.argument, m.shape) for m in log} == {("t", (2, -1)), ("batch['rows']", (2, -1))}
    assert type(out) is type(changed) is torch.Tensor
    with mode("strict"), pytest.raises(InputMutationError, match="float32\\[2, -1\\]"):
        forward(t, {"rows": rows})


@pytest.mark.filterwarnings("ignore::UserWarning")  # prototypes, says torch
def test_nested_tensors_keep_their_gradients():
    """Read, written and read again; and through nested guarded calls."""
    inner = freeze_inputs(lambda batch: batch["t"])

    @freeze_inputs
    def forward(t):
        y = t * t
        inner({"t": t}).add_(1)
        return y, t * t

    x = ragged(requires_grad=True)
    y, z = forward(x)
    total = sum(row.sum() for row in (*y.unbind(), *z.unbind()))
    total.backward()
    assert [row.tolist() for row in x.grad.unbind()] == [[6, 6], [6, 6, 6]]


@pytest.mark.filterwarnings("ignore::UserWarning")  # prototypes, says torch
def test_quantized_tensors_are_redirected():
    """In containers as well."""
    make = lambda value: torch.quantize_per_tensor(torch.full((3,), value), 0.5, 0, torch.quint8)

    @freeze_inputs
    def forward(batch):
        batch["q"].copy_(make(2.0))
        return batch["q"]

    q = make(1.0)
    with record() as log:
        out = forward({"q": q})
    assert out.dequantize().tolist() == [2, 2, 2]
    assert q.dequantize().tolist() == [1, 1, 1]
    assert [m.argument for m in log] == ["batch['q']"]


# -- C8: where protection is impossible: `test_unseen.py` -------------------------------------------


def test_c8_an_unseen_write_is_reported():
    """In every mode but off: on record, as a warning, as an error."""
    # A tensor handed in by another way than an argument is nothing that can be seen.
    x = torch.zeros(3)

    @freeze_inputs
    def forward(t):
        x.add_(1)  # the caller's own tensor, reached through a closure
        return t.sum()

    with record() as log:
        forward(x)
    (m,) = log
    assert (m.argument, m.kind, m.shape) == ("t", "unseen", (3,))
    with mode("strict"), pytest.raises(InputMutationError, match="argument t") as caught:
        forward(x)
    assert caught.value.mutation.kind == "unseen"
    with mode("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        forward(x)
    assert [type(w.message) for w in seen] == [InputMutationWarning]
    with mode("off"), record() as log:
        forward(x)
    assert list(log) == []
