"""The situations that the library is for: each fails or goes wrong in plain PyTorch, and is right here.

A decoder of `STEPS` steps reads a visited-mask and marks one more city in it. The oracle does the
same out of place, so its gradients are right by construction.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze, freeze_inputs, record
from tests.helpers import Caller, same

STEPS, BATCH, CITIES = 20, 4, 21
STALE = "modified by an inplace operation"


@pytest.fixture
def logits():
    """The scores of a batch, a leaf."""
    return torch.randn(BATCH, CITIES, dtype=torch.float64, requires_grad=True)


def gradient(total, leaf):
    """Return the gradient of a scalar."""
    return torch.autograd.grad(total, leaf)[0]


# -- S0: used, then written, in the same forward ---------------------------------------------------


def used_then_written(w, protect):
    """Use a local tensor, write it, use it again."""
    t = protect(w.exp())
    y = t * t
    t[:] = 3.0
    return (y * t.detach() + t).sum()


def test_s0_plain_pytorch_fails():
    """Without the library the backward raises."""
    w = torch.randn(5, dtype=torch.float64, requires_grad=True)
    total = used_then_written(w, lambda t: t)
    with pytest.raises(RuntimeError, match=STALE):
        total.backward()


def test_s0_frozen_local_gives_the_right_gradient():
    """`t = freeze(t)`: the write goes to a copy, what was saved stays."""
    w = torch.randn(5, dtype=torch.float64, requires_grad=True)
    with record() as log:
        total = used_then_written(w, freeze)
    reference = (w.exp() ** 2 * 3.0 + 3.0).sum()
    same(total.detach(), reference.detach(), exact=False)
    same(gradient(total, w), gradient(reference, w), exact=False)
    assert [(m.op, m.count) for m in log] == [("__setitem__", 1)]


def test_s0_in_a_loop():
    """Twenty reads and writes of a frozen local."""
    w = torch.randn(STEPS, dtype=torch.float64, requires_grad=True)

    def run(protect):
        t = protect(w * 1)
        total = 0.0
        for i in range(STEPS):
            total = total + (t * t).sum() * (i + 1)
            t[i] = 0.0
        return total

    def reference():
        total, keep = 0.0, torch.ones(STEPS, dtype=torch.float64)
        for i in range(STEPS):
            total = total + ((w * keep) ** 2).sum() * (i + 1)
            keep = torch.cat([torch.zeros(i + 1), torch.ones(STEPS - i - 1)]).double()
        return total

    with pytest.raises(RuntimeError, match=STALE):
        run(lambda t: t).backward()
    same(gradient(run(freeze), w), gradient(reference(), w), exact=False)


def test_s0_a_frozen_handle_can_be_frozen_again():
    """`freeze` of what is frozen already protects it against the new name's writes."""
    w = torch.randn(5, requires_grad=True)
    a = freeze(w * 1)
    b = freeze(a)
    y = a * b
    b.zero_()
    assert not (a == 0).any()
    y.sum().backward()
    same(w.grad, 2 * w.detach())


# -- S1: the callee writes what the caller still needs ---------------------------------------------


class Writer(nn.Module):
    """Writes its input in place."""

    def forward(self, x):
        x.clamp_(min=0.25)
        return x * 2


class SafeWriter(SafeModule, Writer):
    """The same, guarded."""


class Caller1(nn.Module):
    """Uses a tensor before and after passing it on, `STEPS` times."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, w):
        x = w.sigmoid()  # autograd saves the result
        total = 0.0
        for i in range(STEPS):
            total = total + (self.inner(x) * x).sum() * (i + 1)
        return total


def s1_reference(w):
    """The same without an in-place operation."""
    x = w.sigmoid()
    return sum((x.clamp(min=0.25) * 2 * x).sum() * (i + 1) for i in range(STEPS))


def test_s1_plain_pytorch_fails_or_corrupts(logits):
    """Without the library the graph breaks, and without gradients the data changes silently."""
    with pytest.raises(RuntimeError, match=STALE):
        Caller1(Writer())(logits).backward()
    data = torch.zeros(3)
    Writer()(data)
    assert data.tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("way", ["class", "mixin", "decorated"])
def test_s1_guarded_callee(logits, way):
    """B is guarded: A's tensor is untouched, the gradient right, the write on record."""

    class Own(SafeModule):
        def forward(self, x):
            x.clamp_(min=0.25)
            return x * 2

    class Decorated(nn.Module):
        @freeze_inputs
        def forward(self, x):
            x.clamp_(min=0.25)
            return x * 2

    inner = {"class": Own, "mixin": SafeWriter, "decorated": Decorated}[way]()
    with record() as log:
        total = Caller1(inner)(logits)
    reference = s1_reference(logits)
    same(total.detach(), reference.detach(), exact=False)
    same(gradient(total, logits), gradient(reference, logits), exact=False)
    (m,) = log
    assert (m.op, m.argument, m.count) == ("clamp_", "x", STEPS)
    assert m.module.endswith((".Own", ".SafeWriter", ".Decorated"))


def test_s1_data_without_gradients():
    """The caller's data does not change, epoch after epoch."""
    data = torch.zeros(3)
    caller = Caller(data)
    first, second = SafeWriter()(data), SafeWriter()(data)
    caller.check()
    same(first, second)


# -- S2: the caller writes what the callee has used ------------------------------------------------


class Step(nn.Module):
    """One decoding step: reads the mask, which autograd saves."""

    def forward(self, logits, mask):
        return logits.masked_fill(mask, -1e9).log_softmax(-1)


class SafeStep(SafeModule, Step):
    """The step, guarded; alone that cannot help, as the caller writes after it has returned."""


class SnapshotStep(SafeModule, Step, snapshot=True):
    """The step with a snapshot of its inputs."""


class Decode(nn.Module):
    """Decodes `STEPS` cities; the mask is its input."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, logits, mask):
        total = 0.0
        for i in range(STEPS):
            p = self.step(logits, mask)
            choice = p.argmax(-1, keepdim=True)
            mask.scatter_(1, choice, True)
            total = total + p.gather(1, choice).sum() * (i + 1)
        return total


class SafeDecode(SafeModule, Decode):
    """The decoder, guarded."""


class DecodeLocal(Decode):
    """The same, with the mask local to it."""

    protect = staticmethod(lambda mask: mask)

    def forward(self, logits):
        mask = self.protect(torch.zeros(BATCH, CITIES, dtype=torch.bool))
        return super().forward(logits, mask)


class DecodeFrozen(DecodeLocal):
    """The same, with the mask local and frozen."""

    protect = staticmethod(freeze)


def s2_reference(logits):
    """The same without an in-place operation."""
    mask = torch.zeros(BATCH, CITIES, dtype=torch.bool)
    total = 0.0
    for i in range(STEPS):
        p = logits.masked_fill(mask, -1e9).log_softmax(-1)
        choice = p.argmax(-1, keepdim=True)
        mask = mask.scatter(1, choice, True)
        total = total + p.gather(1, choice).sum() * (i + 1)
    return total


def empty():
    """Return a mask in which no city has been visited."""
    return torch.zeros(BATCH, CITIES, dtype=torch.bool)


def test_s2_plain_pytorch_fails(logits):
    """Without the library the backward raises, whoever owns the mask."""
    with pytest.raises(RuntimeError, match=STALE):
        Decode(Step())(logits, empty()).backward()
    with pytest.raises(RuntimeError, match=STALE):
        DecodeLocal(Step())(logits).backward()


def test_s2_guarding_the_step_alone_is_not_enough(logits):
    """The caller writes its own tensor after the step has returned: that is what snapshots are for."""
    with pytest.raises(RuntimeError, match=STALE):
        DecodeLocal(SafeStep())(logits).backward()


@pytest.mark.parametrize("step", [Step, SafeStep, SnapshotStep])
def test_s2_the_mask_is_an_input_of_the_guarded_decoder(logits, step):
    """A is a `SafeModule` and the mask its input: works as it is, whatever the step is."""
    mask = empty()
    caller = Caller(logits, mask)
    with record() as log:
        total = SafeDecode(step())(logits, mask)
    caller.check()
    same(total.detach(), s2_reference(logits).detach())
    same(gradient(total, logits), gradient(s2_reference(logits), logits))
    (m,) = log
    assert (m.op, m.argument, m.count) == ("scatter_", "mask", STEPS)
    # What the step took a snapshot of, nobody saved: one copy is enough.
    copies = 1 if step is SnapshotStep else STEPS
    assert m.bytes_copied == copies * BATCH * CITIES


def test_s2_snapshot_of_the_step(logits):
    """The mask is local to A, and B takes a snapshot."""
    total = DecodeLocal(SnapshotStep())(logits)
    same(total.detach(), s2_reference(logits).detach())
    same(gradient(total, logits), gradient(s2_reference(logits), logits))


@pytest.mark.parametrize("step", [Step, SafeStep])
def test_s2_the_local_mask_is_frozen(logits, step):
    """The mask is local to A, and A freezes it."""
    total = DecodeFrozen(step())(logits)
    same(total.detach(), s2_reference(logits).detach())
    same(gradient(total, logits), gradient(s2_reference(logits), logits))


def test_s2_snapshot_decorator(logits):
    """`@freeze_inputs(snapshot=True)` on a function does the same."""

    @freeze_inputs(snapshot=True)
    def step(logits, mask):
        return logits.masked_fill(mask, -1e9).log_softmax(-1)

    total = DecodeLocal(step)(logits)
    same(gradient(total, logits), gradient(s2_reference(logits), logits))


def test_s2_trains():
    """The guarded decoder trains as its out-of-place twin does, parameter for parameter."""
    torch.manual_seed(1)
    guarded, twin = (nn.Linear(3, CITIES, dtype=torch.float64) for _ in range(2))
    twin.load_state_dict(guarded.state_dict())
    x = torch.randn(BATCH, 3, dtype=torch.float64)
    for net, run in (
        (guarded, lambda logits: SafeDecode(Step())(logits, empty())),
        (twin, s2_reference),
    ):
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(5):
            optimiser.zero_grad()
            (-run(net(x))).backward()
            optimiser.step()
    same(guarded.weight.detach(), twin.weight.detach())
