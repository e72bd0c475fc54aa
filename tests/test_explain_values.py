"""`explain(check_values=True)` finds writes that PyTorch does not count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from safemodule._explain_values import checksum, same


def data_write():
    """A write through `.data`."""
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    y.data.add_(1)  # writes
    return y.sum()


def numpy_write():
    """A write through an array that shares the memory."""
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    y.detach().numpy()[:] = 0.25
    return y.sum()


def statistics_write():
    """Statistics saved in evaluation, and updated by training before backward."""
    norm = nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3, requires_grad=True)
    loss = norm(x).square().sum()
    norm.train()
    norm(torch.randn(4, 3) + 5)  # writes
    return loss


def parameter_rebound():
    """A parameter gets other data between forward and backward."""
    p = nn.Parameter(torch.ones(3))
    loss = (p * p).sum()
    p.data = torch.full((3,), 2.0)
    return loss


def kernel_write_in_a_function():
    """A fused loss stores its gradient in the memory of its input."""

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p, y):
            loss = F.nll_loss(p.log(), y)
            p.detach().numpy()[:] = 0.25
            ctx.save_for_backward(p)
            return loss

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0], None

    z = torch.randn(2, 4, requires_grad=True)
    return Loss.apply(z.softmax(-1), torch.tensor([0, 3]))


PROGRAMS = [
    data_write,
    numpy_write,
    statistics_write,
    parameter_rebound,
    kernel_write_in_a_function,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_uncounted_write(program):
    """PyTorch says nothing; the checksum does, and the seen write is named."""
    program().backward()
    with explain():
        program().backward()
    with (
        pytest.raises(InplaceError, match="modified by an inplace operation") as info,
        explain(check_values=True),
    ):
        program().backward()
    found = explanation_of(info.value)
    assert "its values differ" in found.sentence
    written = [e for e in found.events if e.kind == "written"]
    seen = [e.where.line for e in written if e.where is not None]
    assert all(line.endswith("# writes") for line in seen)
    assert bool(seen) == (program in {data_write, statistics_write})
    if not seen:
        assert "no PyTorch operation" in written[0].text


def test_without_writes():
    """Nothing is reported where nothing was written, and gradients are equal."""

    def train():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(3, 2, 8)).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in net.parameters()]

    plain = train()
    with explain(check_values=True):
        torch.testing.assert_close(train(), plain)


def test_counted_write_says_versions():
    """A write that is counted is reported as without checksums."""
    with (
        pytest.raises(InplaceError, match="is at version 1; expected version 0"),
        explain(check_values=True),
    ):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()


class Doubles(torch.autograd.Function):
    """Its backward writes the gradient that it is given."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(2)  # the gradient


def test_gradient_written_in_backward():
    """A custom backward that writes its gradient is refused before it writes."""
    x = torch.ones(3, requires_grad=True)

    def loss():
        return ((Doubles.apply(x) + x) * 2).sum()

    with explain():
        loss().backward()  # wrong, and PyTorch cannot know
    x.grad = None
    with (
        pytest.raises(InplaceError, match="whoever else receives that gradient") as info,
        explain(check_values=True),
    ):
        loss().backward()
    found = explanation_of(info.value)
    assert found.name == "grad"
    assert found.role == "gradient 0 given to Doubles.backward"
    assert found.events[0].where.line.endswith("# the gradient")
    assert x.grad is None


def test_own_tensors_may_be_written_in_backward():
    """A custom backward may write what it made itself."""

    class Fine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad.clone().mul_(2)

    x = torch.ones(3, requires_grad=True)
    with explain(check_values=True):
        Fine.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


class Copies(torch.autograd.Function):
    """Its backward writes nothing."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("function", [torch.exp, Copies.apply])
def test_hooks_may_write_in_backward(function):
    """A hook that keeps a sum is no backward that writes its gradient, whosever node it is."""
    total = torch.zeros(3)
    with explain(check_values=True):
        y = function(torch.zeros(3, requires_grad=True))
        y.register_hook(lambda grad: total.add_(grad))
        y.sum().backward()
    assert total.tolist() == [1.0] * 3


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_checksum_of_each_dtype(dtype):
    """One changed element is seen, whatever the type."""
    values = torch.arange(24).reshape(2, 3, 4).to(torch.float32)
    tensor = (values > 11) if dtype is torch.bool else values.to(dtype)
    before = checksum(tensor)
    assert same(tensor, before)
    changed = tensor.clone()
    raw = changed.view(torch.uint8)
    raw.view(-1)[5] ^= 1
    assert not same(changed, before)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:3],
        lambda t: t[1].expand(1000, -1),
        lambda t: t[:0],
        lambda t: t[0, 0],
        lambda t: torch.complex(t, t).conj(),
        lambda t: torch.complex(t, t).conj().imag,
    ],
    ids=["transposed", "slice", "expanded", "empty", "scalar", "conjugate", "negative"],
)
def test_checksum_of_views(view):
    """The checksum is one of the values, in whatever memory they lie."""
    tensor = view(torch.randn(4, 6))
    before = checksum(tensor)
    assert same(tensor, before)
    dense = tensor.clone(memory_format=torch.contiguous_format)
    if 0 not in tensor.stride():
        assert same(dense, before)
    if tensor.numel():
        assert not same(dense + 1, before)


def test_checksum_sees_order():
    """Values that changed places are seen, neighbours and far apart."""
    tensor = torch.randn(3_000_000)  # more than one chunk
    before = checksum(tensor)
    for a, b in ((0, 1), (5, 2_900_000), (2_999_998, 2_999_999)):
        changed = tensor.clone()
        changed[[a, b]] = tensor[[b, a]]
        assert not same(changed, before)


def test_checksum_distinguishes_zeros():
    """Bits are compared: NaN equals itself, and -0.0 is not 0.0."""
    assert same(torch.tensor([np.nan]), checksum(torch.tensor([np.nan])))
    assert not same(torch.tensor([-0.0]), checksum(torch.tensor([0.0])))


def test_no_checksum_without_memory():
    """What has no plain memory is not compared."""
    assert checksum(torch.eye(3).to_sparse()) is None
    assert checksum(torch.ones(3, device="meta")) is None
    assert same(torch.eye(3).to_sparse(), None)
    seen = []
    torch.func.vmap(lambda x: (seen.append(checksum(x)), x)[1])(torch.ones(2, 3))
    assert seen == [None]


def test_wrapper_subclass():
    """A tensor whose memory only its own code knows is trained with, and not compared."""
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.ones(3), torch.full((3,), 2.0)).requires_grad_()
    assert checksum(x) is None
    with explain(check_values=True):
        x.exp().sum().backward()
    assert torch.equal(x.grad.b, torch.full((3,), 2.0).exp())
