"""Rule 19: a handle shows, formats, pickles, copies and saves as a plain tensor."""

from __future__ import annotations

import copy
import io
import json
import pickle

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze
from tests.helpers import Caller, forward_of, is_plain, same

MAKERS = {
    "plain": lambda: torch.arange(6.0).reshape(2, 3),
    "leaf": lambda: torch.arange(6.0).reshape(2, 3).clone().requires_grad_(),
    "non-leaf": lambda: torch.arange(6.0, requires_grad=True).reshape(2, 3) * 2,
    "scalar": lambda: torch.tensor(3.14159),
    "bool": lambda: torch.tensor([True, False]),
    "empty": lambda: torch.zeros(0, 3),
    "view": lambda: torch.arange(12.0).reshape(4, 3)[::2],
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
writes = pytest.mark.parametrize("write", [False, True], ids=["unwritten", "written"])


def inside(function, make, write):
    """Return what a function makes of a handle, and what it makes of the plain tensor."""

    def touch(x):
        if write:
            with torch.no_grad():
                x.logical_not_() if x.dtype is torch.bool else x.mul_(2)
        return x

    theirs = make()
    if write:
        theirs = touch(theirs.detach().clone()).requires_grad_(theirs.requires_grad)
    return forward_of(lambda x: function(touch(x)))(make()), function(theirs)


@makers
def test_repr_and_str(make):
    """Character by character."""
    for function in (repr, str, lambda x: f"{x}"):
        mine, theirs = inside(function, make, write=False)
        assert mine == theirs.replace(", grad_fn=<MulBackward0>", ", grad_fn=<AliasBackward0>") or (
            mine.split(", grad_fn")[0].split(", requires_grad")[0]
            == theirs.split(", grad_fn")[0].split(", requires_grad")[0]
        )
        assert "Frozen" not in mine


def test_format():
    """A scalar takes a format."""
    mine, theirs = inside(lambda x: f"{x:.3f} {x:>10.1f}", MAKERS["scalar"], write=True)
    assert mine == theirs == "6.283        6.3"


@makers
@writes
def test_pickle(make, write):
    """The bytes hold a plain tensor, and nothing of the library."""
    data, _ = inside(
        lambda x: pickle.dumps(x if x.is_leaf or not x.requires_grad else x.detach()), make, write
    )
    assert b"safemodule" not in data
    back = pickle.loads(data)
    assert type(back) is torch.Tensor
    assert is_plain(back)


@makers
@writes
def test_torch_save(make, write):
    """`torch.save` and `torch.load`, weights only."""

    def save(x):
        buffer = io.BytesIO()
        torch.save({"x": x.detach(), "y": [x.detach()]}, buffer)
        return buffer.getvalue()

    data, theirs = inside(save, make, write)
    back = torch.load(io.BytesIO(data))
    same(back["x"], torch.load(io.BytesIO(theirs))["x"])
    assert b"safemodule" not in data
    assert back["x"].data_ptr() == back["y"][0].data_ptr() or not back["x"].numel()


@writes
@pytest.mark.parametrize("name", ["plain", "leaf", "scalar", "bool", "empty", "view"])
def test_deepcopy(name, write):
    """A deep copy is independent, plain, and a leaf where the original is one."""
    mine, theirs = inside(copy.deepcopy, MAKERS[name], write)
    assert type(mine) is torch.Tensor
    assert is_plain(mine)
    same(mine.detach(), theirs.detach())


@writes
def test_deepcopy_of_a_non_leaf_is_refused_as_ever(write):
    """PyTorch deep-copies only leaves."""
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(MAKERS["non-leaf"]())
    if not write:
        with pytest.raises(RuntimeError, match="deepcopy"):
            inside(copy.deepcopy, MAKERS["non-leaf"], write)


def test_deepcopy_keeps_sharing():
    """Two references to one handle are one tensor in the copy."""

    def forward(x):
        a, b = copy.deepcopy([x, x])
        return a is b

    assert forward_of(forward)(torch.zeros(2)) is True


def test_shallow_copy():
    """`copy.copy` shares memory, and a write to it is protected."""

    def forward(x):
        y = copy.copy(x)
        y.add_(1)
        return x * 1, y * 1

    x = torch.zeros(2)
    caller = Caller(x)
    a, b = forward_of(forward)(x)
    caller.check()
    assert (a.tolist(), b.tolist()) == ([1, 1], [1, 1])


def test_no_attribute_shows():
    """`vars(x)` and `x.__dict__` are what they are on the caller's side of a fresh tensor."""

    def forward(x):
        x.mine = 1
        v = x[0]
        return dict(vars(x)), dict(x.__dict__), dict(vars(v))

    assert forward_of(forward)(torch.zeros(2)) == ({"mine": 1}, {"mine": 1}, {})


@writes
def test_register_buffer(write):
    """A buffer registered inside forward is a plain tensor to whoever reads the state dict."""

    class Net(SafeModule):
        def forward(self, x):
            if write:
                x.mul_(2)
            self.register_buffer("kept", x)
            return x.sum()

    net = Net()
    x = torch.ones(2)
    net(x)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    back = torch.load(io.BytesIO(buffer.getvalue()))
    assert back["kept"].tolist() == ([2, 2] if write else [1, 1])
    assert b"safemodule" not in buffer.getvalue()
    assert x.tolist() == [1, 1]


@writes
def test_parameter(write):
    """`nn.Parameter(x)` is a real one, with memory of its own."""

    def forward(x):
        if write:
            x.mul_(2)
        p = nn.Parameter(x)
        assert type(p) is nn.Parameter
        assert isinstance(p, nn.Parameter)
        with torch.no_grad():
            p.add_(1)
        return p

    x = torch.ones(2)
    caller = Caller(x)
    p = forward_of(forward)(x)
    caller.check()
    assert type(p) is nn.Parameter
    assert p.tolist() == ([3, 3] if write else [2, 2])
    assert is_plain(p)
    assert p.is_leaf


def test_parameter_registered_on_the_module():
    """And it trains."""

    class Net(SafeModule):
        def forward(self, x):
            if not hasattr(self, "w"):
                self.w = nn.Parameter(x)
            return (self.w * x).sum()

    net = Net()
    x = torch.ones(2)
    net(x).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    assert net.w.tolist() == [0, 0]
    assert x.tolist() == [1, 1]


def test_isinstance_of_parameter():
    """A handle of a caller's parameter says that it is one, as in a plain module."""
    p = nn.Parameter(torch.ones(2))
    assert forward_of(lambda x: isinstance(x, nn.Parameter))(p) is True
    assert forward_of(lambda x: isinstance(x, nn.Parameter))(p * 1) is False


def test_type_and_json():
    """`tolist` and `item` give plain Python."""

    def forward(x):
        return json.dumps([x.tolist(), x[0, 0].item(), float(x[0, 1]), int(x[1, 1]), len(x)])

    assert (
        forward_of(forward)(torch.arange(6.0).reshape(2, 3))
        == "[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 0.0, 1.0, 4, 2]"
    )


def test_grad_of_an_unwritten_leaf():
    """It reads the caller's."""
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert forward_of(lambda x: x.grad * 1)(x).tolist() == [3, 3]


def test_optimiser_built_on_a_leaf_input():
    """As in a plain module it can be built; its step goes to the module's copy."""

    def forward(x):
        optimiser = torch.optim.SGD([x], lr=0.1)
        optimiser.zero_grad()
        (x**2).sum().backward()
        optimiser.step()
        return x * 1

    x = torch.ones(2, requires_grad=True)
    was = x.detach().clone()
    out = forward_of(forward)(x)
    same(x.detach(), was)
    assert x.grad.tolist() == [2, 2]
    same(out.detach(), torch.tensor([0.8, 0.8]), exact=False)


def test_manual_gradient_step():
    """`x.data -= lr * x.grad` on a leaf made inside."""

    def forward(x):
        z = x.detach().requires_grad_()
        for _ in range(3):
            z.grad = None
            (z**2).sum().backward()
            z.data -= 0.1 * z.grad
        return z.detach() * 1

    x = torch.ones(2)
    caller = Caller(x)
    out = forward_of(forward)(x)
    caller.check()
    same(out, torch.full((2,), 0.8**3), exact=False)


def test_lbfgs_on_a_leaf_input():
    """LBFGS on the input itself."""

    def forward(x):
        x.requires_grad_()
        optimiser = torch.optim.LBFGS([x], max_iter=5)

        def closure():
            optimiser.zero_grad()
            loss = ((x - 3) ** 2).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        return x.detach() * 1

    x = torch.ones(2)
    caller = Caller(x)
    out = forward_of(forward)(x)
    caller.check()
    same(out, torch.full((2,), 3.0), exact=False)


def test_freeze_shows_as_a_plain_tensor():
    """`freeze` likewise."""
    t = freeze(torch.ones(2))
    assert repr(t) == "tensor([1., 1.])"
    assert type(pickle.loads(pickle.dumps(t))) is torch.Tensor
    assert vars(t) == {}
