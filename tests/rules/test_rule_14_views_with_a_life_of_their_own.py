"""Rule 14: a view that has become a leaf is a new root that shares memory, and keeps its state."""

from __future__ import annotations

import torch

from tests.helpers import Caller, compare_with_clones, forward_of, same


def test_leaf_keeps_its_identity_over_a_write():
    """Its gradient, hooks and leaf state survive the redirect of the input."""
    fired = []

    def forward(x):
        z = x.detach().requires_grad_()
        z.register_hook(lambda grad: fired.append(grad.tolist()))
        x.add_(1)
        assert z.is_leaf
        assert z.requires_grad
        (z * 3).sum().backward()
        return z.grad * 1, z.detach() * 1

    x = torch.ones(2)
    caller = Caller(x)
    grad, value = forward_of(forward)(x)
    caller.check()
    assert fired == [[3, 3]]
    assert grad.tolist() == [3, 3]
    assert value.tolist() == [2, 2]  # it shares the memory that was written


def test_gradient_before_and_after_a_write():
    """`.grad` accumulates on the same leaf."""

    def forward(x):
        z = x.detach().requires_grad_()
        (z**2).sum().backward()
        with torch.no_grad():
            x.mul_(2)
        (z**2).sum().backward()
        return z.grad * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.tensor([1.0, 2.0]),))


def test_optimiser_on_such_a_view():
    """It moves the module's values, not the caller's."""

    def forward(x):
        z = x.detach().requires_grad_()
        optimiser = torch.optim.SGD([z], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            (z**2).sum().backward()
            optimiser.step()
        return z.detach() * 1, x * 1

    compare_with_clones(
        forward_of(forward), forward, lambda: (torch.tensor([1.0, 2.0], dtype=torch.float64),)
    )


def test_lbfgs_on_such_a_view():
    """LBFGS evaluates the closure many times and writes through views of its own."""

    def forward(x):
        z = x.detach().requires_grad_()
        optimiser = torch.optim.LBFGS([z], max_iter=5)

        def closure():
            optimiser.zero_grad()
            loss = ((z - 3) ** 2).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        return z.detach() * 1

    result = compare_with_clones(
        forward_of(forward), forward, lambda: (torch.tensor([1.0, 2.0], dtype=torch.float64),)
    )
    same(result.out, torch.tensor([3.0, 3.0], dtype=torch.float64), exact=False)


def test_two_leaves_of_one_input():
    """Each has a gradient of its own; they share memory."""

    def forward(x):
        a = x.detach().requires_grad_()
        b = x[:1].detach().requires_grad_()
        x.add_(1)
        (a.sum() * 2 + b.sum() * 3).backward()
        return a.grad * 1, b.grad * 1, a.detach() * 1, b.detach() * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.zeros(2),))


def test_the_leaf_is_written():
    """A write to the leaf under no_grad shows in the input, and not at the caller's."""

    def forward(x):
        z = x.detach().requires_grad_()
        with torch.no_grad():
            z -= 0.5
        return x * 1, z.detach() * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.ones(2),))


def test_parameter_made_of_a_view():
    """`nn.Parameter(x[0])` lives on its own."""

    def forward(x):
        p = torch.nn.Parameter(x[0])
        (p * 2).sum().backward()
        with torch.no_grad():
            p.sub_(p.grad)
        return p.detach() * 1, x * 1

    x = torch.ones(2, 2)
    caller = Caller(x)
    p, y = forward_of(forward)(x)
    caller.check()
    assert p.tolist() == [-1, -1]
    assert y[1].tolist() == [1, 1]


def test_leaves_of_a_leaf():
    """An input that became a leaf is written under no_grad: its views and leaves see it."""

    def forward(x, through):
        x.requires_grad_()
        leaf, row = x.detach().requires_grad_(), x[0]
        with torch.no_grad():
            x.add_(1)
            (leaf if through else x).mul_(3)
        assert leaf.is_leaf
        assert x.is_leaf
        return x.detach(), leaf.detach(), row.detach()

    for through in (False, True):
        x = torch.ones(2, 2)
        caller = Caller(x)
        out = forward_of(forward)(x, through)
        caller.check()
        assert [t.tolist() for t in out] == [t.tolist() for t in forward(x.clone(), through)]
