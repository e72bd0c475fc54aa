"""Gradient checkpointing: around a guarded module and inside one, both kinds."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, compare_with_clones, same

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


def run_checkpointed(function, *args, reentrant):
    """Checkpoint a call."""
    return checkpoint(function, *args, use_reentrant=reentrant)


def one():
    """Return an input."""
    return (torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(),)


class Block(nn.Module):
    """Reads, writes, reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x).tanh()
        x.mul_(0.5)
        return y * x


class Safe(SafeModule, Block):
    """Block, guarded."""


class OutOfPlace(Block):
    """Block, out of place."""

    def forward(self, x):
        y = self.linear(x).tanh()
        return y * (x * 0.5)


@REENTRANT
def test_around_a_guarded_module(reentrant):
    """The recomputed forward writes again, on a copy again."""
    safe, plain = Safe(), OutOfPlace()
    plain.load_state_dict(safe.state_dict())
    x = one()[0]
    caller = Caller(x)
    out = run_checkpointed(safe, x, reentrant=reentrant).square().sum()
    caller.check()
    out.backward()
    grad, x.grad = x.grad, None
    caller.check()
    (expected,) = one()
    plain(expected).square().sum().backward()
    same(grad, expected.grad)
    for mine, theirs in zip(safe.parameters(), plain.parameters(), strict=True):
        same(mine.grad, theirs.grad)


def test_recomputation_is_recorded_as_any_call():
    """A checkpointed call writes twice: in the forward pass and in the recomputation."""
    with record() as log:
        checkpoint(Safe(), one()[0], use_reentrant=False).sum().backward()
    assert [(m.op, m.count) for m in log] == [("mul_", 2)]


@REENTRANT
def test_inside_a_guarded_module(reentrant):
    """A handle is given to a checkpointed function, which reads it."""

    def forward(x):
        x.add_(1)
        y = run_checkpointed(lambda t: (t * t).sin(), x, reentrant=reentrant)
        return y + x.exp()

    guarded = freeze_inputs(forward)
    x = one()[0]
    caller = Caller(x)
    guarded(x).sum().backward()
    grad, x.grad = x.grad, None
    caller.check()
    (expected,) = one()
    y = expected + 1
    ((y * y).sin() + y.exp()).sum().backward()
    same(grad, expected.grad, exact=False)


@REENTRANT
@pytest.mark.parametrize("kind", ["whole", "view"])
def test_a_write_after_a_checkpointed_call(reentrant, kind):
    """What is recomputed is recomputed from the value of the first pass, not from a later one."""

    def forward(x):
        y = run_checkpointed(lambda t: (t * t).sin(), x, reentrant=reentrant)
        if kind == "whole":
            x.add_(1)
        else:
            x[0].add_(1)
        return y + x.exp()

    guarded = freeze_inputs(forward)
    x = one()[0]
    caller = Caller(x)
    guarded(x).sum().backward()
    grad, x.grad = x.grad, None
    caller.check()
    (expected,) = one()
    step = torch.ones_like(expected)
    if kind == "view":
        step[1] = 0
    ((expected * expected).sin() + (expected + step).exp()).sum().backward()
    same(grad, expected.grad, exact=False)


@REENTRANT
def test_a_checkpointed_function_that_writes_its_argument(reentrant):
    """The write of the first pass and that of the recomputation each go to a copy."""

    def inner(t):
        y = t * 2
        t.mul_(3)
        return y * t

    def forward(x):
        y = run_checkpointed(inner, x * 1, reentrant=reentrant)
        return y + x

    def reference(x):
        return (x * 2) * (x * 3) + x

    guarded = freeze_inputs(
        lambda x: run_checkpointed(freeze_inputs(inner), x, reentrant=reentrant) + x
    )
    x = one()[0]
    caller = Caller(x)
    guarded(x).sum().backward()
    grad, x.grad = x.grad, None
    caller.check()
    (expected,) = one()
    reference(expected).sum().backward()
    same(grad, expected.grad, exact=False)


def test_nested_and_sequential():
    """`checkpoint_sequential` over guarded blocks, and a checkpoint in a checkpoint."""
    torch.manual_seed(0)
    safe = nn.Sequential(*[Safe() for _ in range(4)])
    plain = nn.Sequential(*[OutOfPlace() for _ in range(4)])
    plain.load_state_dict(safe.state_dict())
    x, expected = one()[0], one()[0]
    caller = Caller(x)
    nested = functools.partial(checkpoint_sequential, safe, 2, use_reentrant=False)
    checkpoint(nested, x, use_reentrant=False).square().sum().backward()
    grad, x.grad = x.grad, None
    caller.check()
    plain(expected).square().sum().backward()
    same(grad, expected.grad)


def test_random_numbers_are_the_same_again():
    """Dropout in a guarded module is recomputed with the same mask."""

    class Drops(SafeModule):
        def forward(self, x):
            x.mul_(2)
            return nn.functional.dropout(x, 0.5, training=True) * x

    torch.manual_seed(0)
    x = torch.ones(100, requires_grad=True)
    out = checkpoint(Drops(), x, use_reentrant=False)
    out.sum().backward()
    same(x.grad, torch.where(out.detach() > 0, 16.0, 0.0))


def test_selective_checkpointing():
    """A policy that keeps some operations' results and recomputes the others."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        if op == torch.ops.aten.mm.default:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    linear = Block().linear

    def forward(x):
        x.mul_(0.5)
        return linear(x).tanh() * x

    x, expected = one()[0], one()[0]
    caller = Caller(x)
    out = checkpoint(
        freeze_inputs(forward),
        x,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, policy),
    )
    caller.check()
    out.square().sum().backward()
    forward(expected * 1).square().sum().backward()
    same(x.grad, expected.grad)


def test_checkpoint_without_gradients():
    """Nothing to recompute: the call is an ordinary one."""
    with torch.no_grad():
        compare_with_clones(
            lambda x: checkpoint(Safe(), x, use_reentrant=False),
            OutOfPlace(),
            lambda: (one()[0].detach(),),
            backward=False,
        )
