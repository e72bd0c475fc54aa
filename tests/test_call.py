"""One guarded call: which tensors get a handle, which are cloned, which pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze_inputs, record
from safemodule._tensor import FrozenTensor
from tests.helpers import Caller, forward_of


def kind_of(x):
    """Return the type that arrives for an argument, by position and by keyword."""
    seen = []
    guarded = freeze_inputs(lambda x, **named: seen.append(type(x)))
    guarded(x)
    guarded(x=x)
    guarded(x, other={"k": x})
    assert len(set(seen)) == 1
    return seen[0]


def test_ordinary_tensors_get_a_handle():
    """Tensors, parameters, buffers, handles of an outer call."""
    assert kind_of(torch.zeros(2)) is FrozenTensor
    assert kind_of(nn.Parameter(torch.zeros(2))) is FrozenTensor
    assert kind_of(nn.Buffer(torch.zeros(2))) is FrozenTensor
    assert kind_of(torch.zeros(2, device="meta")) is FrozenTensor
    with torch.inference_mode():
        assert kind_of(torch.zeros(2)) is FrozenTensor


class Mine(torch.Tensor):
    """Somebody's subclass."""


def test_others_are_cloned():
    """They arrive as another object of their own kind, and come back as the caller's if unwritten."""
    for x in (torch.zeros(2).as_subclass(Mine), torch.eye(2).to_sparse()):
        seen = []
        out = freeze_inputs(lambda x, seen=seen: (seen.append(x), x)[1])(x)
        assert type(seen[0]) is type(x)
        assert seen[0] is not x
        assert out is x


def test_a_cloned_input_that_is_written():
    """The clone comes back, the caller's is untouched."""
    x = torch.zeros(2).as_subclass(Mine)
    out = freeze_inputs(lambda x: x.add_(1))(x)
    assert type(out) is Mine
    assert (out.tolist(), x.tolist()) == ([1, 1], [0, 0])


def test_the_same_tensor_is_the_same_handle():
    """`query is key`, by position, by keyword, in containers and variadics."""

    def forward(query, key, *rest, value, **named):
        assert query is key
        assert query is value
        assert query is rest[0]["x"][0]
        assert query is named["other"]
        query.add_(1)
        return key * value

    x = torch.ones(1)
    assert forward_of(forward)(x, x, {"x": [x]}, value=x, other=x).tolist() == [4]
    assert x.tolist() == [1]


def test_attention_with_one_tensor_as_query_key_and_value():
    """`nn.MultiheadAttention` takes its fast path by identity."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 4)
    guarded = forward_of(lambda q, k, v: attention(q, k, v)[0])
    with torch.no_grad():
        assert torch.equal(guarded(x, x, x), attention(x, x, x)[0])


def test_two_tensors_of_one_storage_are_two_inputs():
    """As two clones would be."""
    base = torch.zeros(3)
    a, b = base[:2], base[1:]
    caller = Caller(base, a, b)
    out = forward_of(lambda a, b: (a.add_(1), b * 1))(a, b)
    caller.check()
    assert [t.tolist() for t in out] == [[1, 1], [0, 0]]


def test_flat_and_general_calls_agree(monkeypatch):
    """The fast way for plain tensors by position, and the general way, do the same."""

    def forward(x, y, k, flag=None):
        v = x[0]
        x.add_(k)
        return x, v, y

    results = []
    guarded = freeze_inputs(forward)
    for call in (
        lambda x, y: guarded(x, y, 2),
        lambda x, y: guarded(x, y, k=2),
        lambda x, y: guarded(x, y, 2, {"container": 1}),
        lambda x, y: guarded(x, y, 2),  # after a container was seen
    ):
        x, y = torch.zeros(2, 2), torch.ones(1)
        with record() as log:
            a, v, b = call(x, y)
        assert b is y
        assert x.tolist() == [[0, 0], [0, 0]]
        results.append((a.tolist(), v.tolist(), [(m.op, m.argument, m.bytes_copied) for m in log]))
    assert results == [results[0]] * 4


def test_a_module_in_the_place_of_self():
    """Records name the class of the module given first."""

    class Net(SafeModule):
        def forward(self, x):
            return x.add_(1)

    net = Net()
    with record() as log:
        net(torch.zeros(1))
        Net.forward(net, torch.zeros(1))
        type(net).__call__(net, torch.zeros(1))
    assert [m.count for m in log] == [3]
    assert log[0].module.endswith(".Net")


def test_modules_as_arguments_pass():
    """A module is no container."""
    net = nn.Linear(1, 1)
    assert freeze_inputs(lambda x, m: m)(torch.zeros(1), net) is net


@pytest.mark.parametrize("grad", [True, False])
def test_handles_keep_the_facts_of_their_tensor(grad):
    """Everything one can ask is as the caller's."""
    x = torch.zeros(2, 3, requires_grad=grad)

    def forward(h):
        return (
            h.shape, h.dtype, h.device, h.ndim, h.requires_grad, h.is_leaf, h.stride(),
            h.storage_offset(), h.is_contiguous(), h.layout, h.grad, h.retains_grad, h.numel(),
        )  # fmt: skip

    assert freeze_inputs(forward)(x) == forward(x)


def test_requires_grad_under_no_grad():
    """A handle made under no_grad still requires the gradient that its tensor does."""
    x = torch.ones(2, requires_grad=True)

    @freeze_inputs
    def forward(h):
        assert h.requires_grad
        with torch.enable_grad():
            return h * 2

    with torch.no_grad():
        out = forward(x)
    out.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_inference_mode():
    """Inside `inference_mode` results are inference tensors, and writes are protected."""
    x = torch.ones(2)
    with torch.inference_mode():
        out = freeze_inputs(lambda h: (h.add_(1), h * 1, h))(x)
    assert [t.tolist() for t in out] == [[2, 2]] * 3
    assert x.tolist() == [1, 1]
    assert out[1].is_inference()


def test_autocast():
    """Under autocast, values and dtypes are those of a clone."""
    linear = nn.Linear(2, 2)

    def forward(h):
        y = linear(h)
        h.add_(1)
        return y, linear(h)

    x = torch.ones(1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, theirs = freeze_inputs(forward)(x), forward(x.clone())
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype is torch.bfloat16
        assert torch.equal(a, b)


def test_default_device_and_torch_function_modes():
    """A `TorchFunctionMode` around the call sees the operations."""
    from torch.overrides import TorchFunctionMode

    class Count(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    x = torch.zeros(2)
    with Count() as mode:
        out = freeze_inputs(lambda h: h.add_(1) * 2)(x)
    assert out.tolist() == [2, 2]
    assert x.tolist() == [0, 0]
    assert "add_" in mode.names


def test_dispatch_modes():
    """Under a `TorchDispatchMode` inputs are cloned; results are the same."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Pass(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x = torch.zeros(2)
    with Pass():
        out = freeze_inputs(lambda h: (h.add_(1), h))(x)
        assert freeze_inputs(lambda h: h)(x) is x
    assert [t.tolist() for t in out] == [[1, 1]] * 2
    assert x.tolist() == [0, 0]
