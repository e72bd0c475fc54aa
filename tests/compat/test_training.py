"""Training: mixed precision, saved-tensor hooks, accumulation, optimisers, double backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, compare_with_clones, same


class Net(nn.Module):
    """A step of a decoder: reads its inputs, marks the mask, reads again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x, mask):
        y = self.first(x).tanh().masked_fill(mask, -1.0)
        mask[:, 0] = True
        x.mul_(0.5)
        return self.second(y * x).masked_fill(mask, 0.0)


class Safe(SafeModule, Net):
    """Net, guarded."""


class Reference(Net):
    """Net, out of place."""

    def forward(self, x, mask):
        y = self.first(x).tanh().masked_fill(mask, -1.0)
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], 1)
        x = x * 0.5
        return self.second(y * x).masked_fill(mask, 0.0)


def batch(rows=3, *, grad=True):
    """Return inputs."""
    x = torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).requires_grad_(grad)
    return x, torch.zeros(rows, 4, dtype=torch.bool)


def gradients_of(module):
    """Return the gradients of the parameters."""
    return [p.grad for p in module.parameters()]


def assert_trained_alike(safe, plain):
    """Assert equal gradients and equal parameters."""
    for mine, theirs in zip(safe.parameters(), plain.parameters(), strict=True):
        same(mine.detach(), theirs.detach())
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            same(mine.grad, theirs.grad)


def both(run, rows=3):
    """Run a piece of training on the guarded and on the out-of-place module."""
    safe, plain = Safe(), Reference()
    x, mask = batch(rows)
    caller = Caller(x, mask)
    mine = run(safe, x, mask)
    x.grad, grad = None, x.grad
    caller.check()
    other, other_mask = batch(rows)
    theirs = run(plain, other, other_mask)
    assert_trained_alike(safe, plain)
    if grad is not None:
        same(grad, other.grad)
    return mine, theirs


def test_forward_and_backward():
    """One step."""

    def run(module, x, mask):
        loss = module(x, mask).square().sum()
        loss.backward()
        return loss

    same(*both(run))


@pytest.mark.parametrize("where", ["around", "inside"])
def test_autocast(where):
    """Automatic mixed precision on the CPU, around the call and inside forward."""

    def forward(linear, x):
        y = linear(x)
        x.add_(1)
        return y.float() + linear(x).float() + x

    torch.manual_seed(0)
    linear = nn.Linear(4, 4)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(linear, x)

    function = inside if where == "inside" else lambda x: forward(linear, x)

    def reference(x):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x).float() + linear(x + 1).float() + (x + 1)

    def guarded(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "around"):
            return freeze_inputs(function)(x)

    compare_with_clones(
        guarded,
        reference,
        lambda: (batch()[0],),
        reference=reference,
        parameters=list(linear.parameters()),
        exact=False,
    )


def test_autocast_keeps_no_stale_weight_cast():
    """The cache of cast weights is keyed by leaf tensors: a written input is cast anew."""

    @freeze_inputs
    def forward(x, w):
        y = x @ w
        w.mul_(2)
        return y, x @ w

    x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, z = forward(x, w)
    same(z, 2 * y)
    same(w.detach(), torch.ones(2, 2))


def test_grad_scaler():
    """Scaled losses, unscaling and a skipped step."""

    def run(module, x, mask):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        losses = []
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            loss = module(x, mask).square().sum()
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return torch.stack(losses)

    same(*both(run))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_few_epochs(optimizer, foreach):
    """The same batch again and again: the data stays, and losses are those out of place."""

    def run(module, x, mask):
        steps = optimizer(module.parameters(), lr=0.01, foreach=foreach)
        losses = []
        for _ in range(4):
            steps.zero_grad()
            loss = module(x, mask).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    same(*both(run))


def test_gradient_accumulation():
    """Several backward passes before a step, over views of one batch."""

    def run(module, x, mask):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for rows in (slice(0, 1), slice(1, 3)):
            module(x[rows], mask[rows]).square().sum().backward()
        optimizer.step()
        return x.grad

    same(*both(run))


def test_retain_graph():
    """Backward twice through one graph."""

    def run(module, x, mask):
        loss = module(x, mask).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    same(*both(run))


def test_double_backward():
    """A gradient penalty: the gradient of a gradient."""

    def run(module, x, mask):
        out = module(x, mask).square().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        (grad.square().sum() + out).backward()
        return grad.detach()

    same(*both(run))


def test_an_optimizer_between_two_backwards():
    """As adversarial training does: one loss, a step, and another graph of the same batch."""

    def run(module, x, mask):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        first = module(x, mask).sum()
        first.backward()
        optimizer.step()
        second = module(x, mask).square().sum()
        second.backward()
        return torch.stack([first.detach(), second.detach()])

    same(*both(run))


def test_a_step_before_the_backward_is_refused_as_in_pytorch():
    """A weight that a step changes before its use is differentiated: PyTorch's error, kept."""
    module = Safe()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, mask = batch()
    kept = module(x, mask).sum()
    module(x, mask).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


# -- saved-tensor hooks ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["around", "inside"])
def test_save_on_cpu(where):
    """Saved tensors that are packed and unpacked: handles among them.

    Of a tensor that is on the CPU already, `save_on_cpu` keeps the very object (see below), so the
    write comes first.
    """

    def forward(x):
        x.add_(1)
        return x * x + x.exp()

    def inside(x):
        with save_on_cpu():
            return forward(x)

    guarded = freeze_inputs(forward if where == "around" else inside)

    def around(x):
        if where == "inside":
            return guarded(x)
        with save_on_cpu():
            return guarded(x)

    compare_with_clones(around, forward, lambda: (batch()[0],), exact=False)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_saved_tensors_hooks(where):
    """Hooks of the user's, which may look at the tensor and keep it as it is."""
    packed = []

    def pack(tensor):
        packed.append(type(tensor))
        return tensor.detach().clone(), tuple(tensor.shape)

    def unpack(pair):
        tensor, shape = pair
        return tensor.reshape(shape)

    def forward(x):
        y = x * x
        x.add_(1)
        return y + x.exp()

    def inside(x):
        with saved_tensors_hooks(pack, unpack):
            return forward(x)

    guarded = freeze_inputs(forward if where == "around" else inside)

    def run(x):
        if where == "inside":
            return guarded(x)
        with saved_tensors_hooks(pack, unpack):
            return guarded(x)

    compare_with_clones(run, lambda x: x * x + (x + 1).exp(), lambda: (batch()[0],), exact=False)
    assert packed


def test_hooks_that_keep_the_tensor_itself_are_as_in_pytorch():
    """A pack hook that stores the very tensor it is given: a later write reaches what it keeps.

    PyTorch skips its check of versions under hooks, and asks that they keep no tensor that is
    written. The gradient is the one that a manual clone gives.
    """

    def forward(x):
        y = x * x
        x.add_(1)
        return y + x * x

    found = []
    for function in (freeze_inputs(forward), lambda x: forward(x.clone())):
        x = batch()[0]
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            (grad,) = torch.autograd.grad(function(x).sum(), x)
        found.append(grad)
    same(found[0], found[1])


@pytest.mark.parametrize(
    "where",
    [
        "around",
        pytest.param(
            "inside",
            marks=pytest.mark.skipif(
                torch.__version__ < "2.7", reason="torch 2.6 does not show which hooks are active"
            ),
        ),
    ],
)
def test_allow_mutation_on_saved_tensors(where):
    """PyTorch's own copy-on-write of saved tensors, around a guarded call and inside one."""

    def forward(x):
        y = x * x
        x.add_(1)
        return y + x * x

    def inside(x):
        with allow_mutation_on_saved_tensors():
            forward(x).sum().backward()

    x = batch()[0]
    caller = Caller(x)
    if where == "inside":
        freeze_inputs(inside)(x)
    else:
        with allow_mutation_on_saved_tensors():
            freeze_inputs(forward)(x).sum().backward()
    grad, x.grad = x.grad, None
    caller.check()
    same(grad, 4 * x.detach() + 2, exact=False)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode():
    """`detect_anomaly`: the same gradients, and a NaN is still found."""

    def run(module, x, mask):
        with torch.autograd.detect_anomaly():
            loss = module(x, mask).square().sum()
            loss.backward()
        return loss

    same(*both(run))

    @freeze_inputs
    def invalid(x):
        x.sub_(x.detach())
        return x.sqrt().sum() * 0

    with (
        torch.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="Error detected"),
        pytest.raises(RuntimeError, match="nan"),
    ):
        invalid(torch.ones(2, requires_grad=True)).backward()


# -- gradients and hooks on tensors ----------------------------------------------------------------


def test_tensor_hooks_and_retained_gradients():
    """`register_hook` and `retain_grad` on a handle act on the value they were put on."""

    def forward(seen):
        def run(x):
            y = x * 2
            y.register_hook(lambda grad: seen.append(grad.clone()))
            x.mul_(3)
            x.retain_grad()
            return y + x

        return run

    seen, expected = [], []
    x = torch.ones(3, requires_grad=True)
    freeze_inputs(forward(seen))(x * 1).sum().backward()
    forward(expected)(x * 1).sum().backward()
    same(seen[0], expected[0])


def test_post_accumulate_gradient_hook():
    """Hooks on parameters that step as soon as a gradient is there."""

    def run(module, x, mask):
        def step(parameter):
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            module(x, mask).square().sum().backward()
        return module(x, mask)

    same(*both(run))


def test_parameters_as_inputs():
    """A guarded function that is given parameters and updates them in place: a copy is updated."""

    @freeze_inputs
    def inner_loop(w, x):
        y = (x * w).sum()
        with torch.no_grad():
            w.sub_(0.1)
        return y + (x * w).sum()

    w = nn.Parameter(torch.ones(3))
    x = torch.arange(3.0)
    caller = Caller(w, x)
    out = inner_loop(w, x)
    same(out.detach(), (x + x * 0.9).sum())
    out.backward()
    grad, w.grad = w.grad, None
    caller.check()
    same(grad, 2 * x)


def test_a_written_input_survives_an_exception():
    """A forward that raises after a write leaves the caller and the next call alone."""

    class Fails(SafeModule):
        def forward(self, x):
            x.add_(1)
            if x.sum() > 10:
                raise ValueError("too large")
            return x

    module = Fails()
    x = torch.full((3,), 5.0)
    caller = Caller(x)
    with pytest.raises(ValueError, match="too large"):
        module(x)
    caller.check()
    same(module(torch.ones(3)), torch.full((3,), 2.0))


def test_exponential_moving_average_and_swa():
    """`AveragedModel` deep-copies a guarded module and averages its parameters."""
    from torch.optim.swa_utils import AveragedModel

    def run(module, x, mask):
        average = AveragedModel(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(x, mask).square().sum().backward()
            optimizer.step()
            average.update_parameters(module)
        return average(x, mask).detach()

    same(*both(run))


def test_clipping_and_lr_schedule():
    """`clip_grad_norm_`, and a schedule."""

    def run(module, x, mask):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x, mask).square().sum().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            optimizer.step()
            schedule.step()
        return x.grad

    same(*both(run))


def test_backward_in_forward():
    """A forward that calls `backward` itself, as meta-learning does."""

    def forward(linear, x):
        inner = copy.deepcopy(linear)
        inner(x).square().sum().backward()
        with torch.no_grad():
            for p in inner.parameters():
                p.sub_(p.grad, alpha=0.1)
        x.add_(1)
        return inner(x)

    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    guarded = freeze_inputs(lambda x: forward(linear, x))
    x = batch(grad=False)[0]
    caller = Caller(x)
    with record() as log:
        out = guarded(x)
    caller.check()
    assert [m.op for m in log] == ["add_"]
    same(out, forward(linear, x.clone()))
