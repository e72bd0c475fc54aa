"""`torch.func`, forward-mode AD and the functional API: over a guarded module, and inside one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad as fwAD
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, assert_same_results, compare_with_clones, same

# Forward-mode AD imports what is deprecated, and `linearize` warns of its own graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


class Plain(nn.Module):
    """Writes its input between two uses of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x).tanh()
        x.mul_(2)
        x[..., 0] = 1.0
        return (y * x).sum()


class Safe(SafeModule, Plain):
    """The same, guarded."""


class OutOfPlace(Plain):
    """The same as `Plain`, written without in-place operations."""

    def forward(self, x):
        y = self.linear(x).tanh()
        x = torch.cat([torch.ones_like(x[..., :1]), x[..., 1:] * 2], -1)
        return (y * x).sum()


def pair():
    """Return the guarded module and its out-of-place form, with equal parameters."""
    torch.manual_seed(0)
    safe = Safe().double()
    plain = OutOfPlace().double()
    plain.load_state_dict(safe.state_dict())
    return safe, plain


def point(*shape):
    """Return some values."""
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


def tangent(x):
    """Return a direction."""
    return torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)


def call(module):
    """Return a function of parameters and input."""
    return lambda parameters, x: functional_call(module, parameters, (x,))


TRANSFORMS = {
    "functional_call": lambda f, p, x: f(p, x[0]),
    "vmap over inputs": lambda f, p, x: vmap(f, (None, 0))(p, x),
    "vmap in chunks": lambda f, p, x: vmap(f, (None, 0), chunk_size=2)(p, x),
    "grad of parameters": lambda f, p, x: grad(f)(p, x[0]),
    "grad of the input": lambda f, p, x: grad(f, argnums=1)(p, x[0]),
    "per-sample gradients": lambda f, p, x: vmap(grad(f), (None, 0))(p, x),
    "vjp": lambda f, p, x: vjp(lambda t: f(p, t), x[0])[1](torch.ones((), dtype=x.dtype)),
    "jvp": lambda f, p, x: jvp(lambda t: f(p, t), (x[0],), (tangent(x[0]),)),
    "jacrev": lambda f, p, x: jacrev(f, argnums=1)(p, x[0]),
    "jacfwd": lambda f, p, x: jacfwd(f, argnums=1)(p, x[0]),
    "hessian": lambda f, p, x: hessian(f, argnums=1)(p, x[0]),
    "jvp of grad": lambda f, p, x: jvp(
        grad(lambda t: f(p, t)), (x[0],), (tangent(x[0]),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_over_a_guarded_module(name):
    """Values and derivatives are those of the out-of-place form, and the caller's input stays.

    In a transform inputs are cloned on entry; a value that is read and then written needs no more
    than that here, as the operations that save it come after the last write.
    """

    class Safe(SafeModule, nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            x.mul_(2)
            x[..., 0] = 1.0
            return (self.linear(x).tanh() * x).sum()

    class OutOfPlace(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            x = torch.cat([torch.ones_like(x[..., :1]), x[..., 1:] * 2], -1)
            return (self.linear(x).tanh() * x).sum()

    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()
    safe, plain = Safe(linear), OutOfPlace(linear)
    parameters = {name: p.detach() for name, p in safe.named_parameters()}
    x = point(5, 3)
    caller = Caller(x, parameters)
    out = TRANSFORMS[name](call(safe), parameters, x)
    caller.check()
    expected = TRANSFORMS[name](call(plain), parameters, x)
    assert_same_results(out, expected, strides=False, exact=False)


def test_read_then_written_in_a_transform_is_as_a_manual_clone():
    """Read, write, differentiate inside `grad`: PyTorch's own error, and not a wrong gradient."""
    safe, _ = pair()
    parameters = {name: p.detach() for name, p in safe.named_parameters()}
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(call(safe))(parameters, point(3))


def test_ensemble():
    """`stack_module_state` and `vmap` over the parameters of several guarded modules."""
    torch.manual_seed(0)
    models = [Safe().double() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = point(4, 3)
    caller = Caller(x)

    def run(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    with torch.no_grad():
        out = vmap(run, (0, 0, None))(parameters, buffers, x)
        same(out, torch.stack([model(x) for model in models]), exact=False)
    caller.check()


def test_forward_mode():
    """`torch.autograd.forward_ad`: tangents flow through reads, writes and views."""
    safe, plain = pair()
    x = point(2, 3)
    direction = tangent(x)
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, direction)
        out = fwAD.unpack_dual(safe(dual))
        expected = fwAD.unpack_dual(plain(dual))
        same(out.primal, expected.primal)
        same(out.tangent, expected.tangent, exact=False)
        same(fwAD.unpack_dual(dual).tangent, direction)
    same(x, point(2, 3))
    assert x._version == 0


def test_dual_made_inside():
    """A dual tensor made of a handle inside forward, and written."""

    @freeze_inputs
    def forward(x, direction):
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, direction)
            y = dual.exp()
            x.add_(1)
            return fwAD.unpack_dual(y).tangent + x

    x = point(3)
    direction = tangent(x)
    caller = Caller(x, direction)
    same(forward(x, direction), x.exp() * direction + x + 1, exact=False)
    caller.check()


FUNCTIONAL = {
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),
    "hessian": lambda f, x: torch.autograd.functional.hessian(f, x),
    "hvp": lambda f, x: torch.autograd.functional.hvp(f, x, tangent(x)),
    "vhp": lambda f, x: torch.autograd.functional.vhp(f, x, tangent(x)),
    "jvp": lambda f, x: torch.autograd.functional.jvp(f, x, tangent(x)),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_api(name):
    """`torch.autograd.functional` over a guarded module that reads, writes and reads."""
    safe, plain = pair()
    x = point(2, 3)
    caller = Caller(x)
    out = FUNCTIONAL[name](safe, x)
    caller.check()
    assert_same_results(out, FUNCTIONAL[name](plain, x), strides=False, exact=False)


def test_gradcheck():
    """`gradcheck` and `gradgradcheck` by finite differences."""
    safe, _ = pair()
    x = point(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(safe, x)
    assert torch.autograd.gradgradcheck(safe, x)


# -- inside a guarded call -------------------------------------------------------------------------


def add_one(t):
    """Write the argument; `grad` refuses that with gradients on."""
    with torch.no_grad():
        t.add_(1)
    return (t * t).sum()


INSIDE = {
    "vmap": lambda x: vmap(lambda t: t * 2)(x),
    "vmap that writes": lambda x: vmap(lambda t: t.add_(1) * 2)(x),
    "grad": lambda x: grad(lambda t: (t * t).sum())(x),
    "grad that writes": lambda x: grad(add_one)(x),
    "vjp": lambda x: vjp(lambda t: t.exp(), x)[0],
    "jvp that writes": lambda x: jvp(lambda t: t.add_(1) * 2, (x,), (tangent(x),)),
    "jacrev": lambda x: jacrev(lambda t: t.exp())(x),
    "jacfwd that writes": lambda x: jacfwd(lambda t: t.add_(1) * 2)(x),
    "hessian that writes": lambda x: hessian(add_one)(x),
    "functionalize that writes": lambda x: torch.func.functionalize(lambda t: t.add_(1) * 2)(x),
    "linearize": lambda x: torch.func.linearize(lambda t: t * t, x)[0],
    "a closed-over input": lambda x: vmap(lambda t: t * x.sum())(torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_transforms_inside_a_guarded_call(name):
    """A transform of a handle, with a read and a write of the module around it.

    Transforms take the tensor out of Python's sight, so what they may write is a copy.
    """

    def forward(x):
        out = INSIDE[name](x)
        x.mul_(3)
        return out, x + 1

    guarded = freeze_inputs(forward)
    compare_with_clones(
        guarded, forward, lambda: (point(4, 3),), strides=False, exact=False, backward=False
    )


def test_a_transform_inside_is_listed_as_a_copy():
    """The copy made for a transform is no mutation; it stands in `log.copies`."""

    @freeze_inputs
    def forward(x):
        return vmap(lambda t: t.add_(1))(x)

    with record() as log:
        forward(torch.ones(3))
    assert not log
    assert [(m.op, m.argument, m.bytes_copied) for m in log.copies] == [("torch.func", "x", 12)]


def test_energy_and_forces_inside():
    """The way of force fields: a gradient taken inside forward, differentiable itself."""

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

        def forward(self, positions):
            positions.requires_grad_(True)
            energy = self.net(positions).sum()
            (forces,) = torch.autograd.grad(energy, positions, create_graph=True)
            return energy, -forces

    torch.manual_seed(0)
    safe = type("Safe", (SafeModule, Field), {})()
    plain = Field()
    x = point(5, 3)
    caller = Caller(x)
    energy, forces = safe(x)
    caller.check()
    expected = plain(point(5, 3))
    same(energy, expected[0])
    same(forces, expected[1])
    forces.square().sum().backward()
    expected[1].square().sum().backward()
    for mine, theirs in zip(safe.parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            same(mine.grad, theirs.grad)
