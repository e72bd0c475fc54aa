"""On a CUDA device: mixed precision, streams, graphs, pinned memory, and memory itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, compare_with_clones, same

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.torch.jit"),
]


class Net(SafeModule):
    """Reads, writes and reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x, mask):
        y = self.linear(x).masked_fill(mask, 0.0)
        mask[:, 0] = True
        x.mul_(0.5)
        return (y * x).masked_fill(mask, 0.0)


def batch(rows=4):
    """Return inputs on the device."""
    x = torch.linspace(-1, 1, 8 * rows, device="cuda").reshape(rows, 8).requires_grad_()
    return x, torch.zeros(rows, 8, dtype=torch.bool, device="cuda")


def reference(net):
    """Return the out-of-place form of a `Net`."""

    def forward(x, mask):
        y = net.linear(x).masked_fill(mask, 0.0)
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], 1)
        return (y * (x * 0.5)).masked_fill(mask, 0.0)

    return forward


def test_results_and_gradients():
    """As on a CPU."""
    net = Net().cuda()
    outcome = compare_with_clones(
        net, reference(net), batch, parameters=list(net.parameters()), exact=False
    )
    assert {m.device for m in outcome.writes} == {"cuda:0"}


def test_autocast_and_scaler():
    """float16 with a GradScaler."""
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    x, mask = batch()
    caller = Caller(x, mask)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = net(x, mask).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    x.grad = None
    caller.check()


def test_side_streams():
    """A guarded call on a stream of its own, and two calls that overlap."""
    net = Net().cuda()
    x, mask = batch()
    expected = net(x, mask).detach()
    caller = Caller(x, mask)
    streams = [torch.cuda.Stream() for _ in range(2)]
    outs = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outs.append(net(x, mask).detach())
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    for out in outs:
        same(out, expected)
    caller.check()


def test_a_stream_inside_forward():
    """A forward that reads its input on a side stream and then writes it."""

    @freeze_inputs
    def forward(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.record_stream(side)
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        x.add_(1)
        return y + x

    x = torch.ones(1024, device="cuda")
    caller = Caller(x)
    same(forward(x), torch.full((1024,), 4.0, device="cuda"))
    caller.check()


def test_cuda_graph_capture():
    """A guarded module captured in a CUDA graph and replayed: inputs are copied in the graph."""
    net = Net().cuda().eval()
    with torch.no_grad():
        x, mask = (t.detach() for t in batch())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(x, mask)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(x, mask)
        x.copy_(torch.ones_like(x))
        expected = net(x, mask)
        caller = Caller(x, mask)
        for _ in range(2):
            graph.replay()
            same(out, expected)
        caller.check()


def test_graphed_callables():
    """`make_graphed_callables` of a guarded module, forward and backward."""
    net = Net().cuda()
    expected = reference(net)(*batch()).detach()
    graphed = torch.cuda.make_graphed_callables(net, batch())
    x, mask = batch()
    caller = Caller(mask)
    out = graphed(x, mask)
    same(out.detach(), expected, exact=False)
    out.sum().backward()
    assert x.grad is not None
    caller.check()


def test_pinned_memory():
    """Pinned inputs, and a loader that pins its batches."""
    x = torch.ones(4, 8).pin_memory()
    caller = Caller(x)

    @freeze_inputs
    def forward(x):
        y = x.to("cuda", non_blocking=True)
        x.add_(1)
        return y * 2

    same(forward(x), torch.full((4, 8), 2.0, device="cuda"))
    assert x.is_pinned()
    caller.check()
    rows = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(4, 2))
    loader = torch.utils.data.DataLoader(rows, batch_size=2, pin_memory=True)
    total = sum(freeze_inputs(lambda t: t.mul_(2).sum())(t) for (t,) in loader)
    assert total == 56


def test_memory():
    """Reading costs none; a written slice costs the slice and not its large base."""
    base = torch.zeros(64, 1 << 20, device="cuda")

    @freeze_inputs
    def reads(x):
        return x.sum()

    @freeze_inputs
    def writes(x):
        x.add_(1)
        return x.sum()

    for function, limit in ((reads, 1 << 16), (writes, (4 << 20) + (1 << 16))):
        function(base[0])
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(base[0])
        assert torch.cuda.max_memory_allocated() - before <= limit


def test_snapshot_on_the_device():
    """`snapshot=True` clones on a device."""

    @freeze_inputs(snapshot=True)
    def forward(x):
        return (x * x).sum()

    x = torch.ones(3, device="cuda", requires_grad=True)
    y = x * 1
    out = forward(y)
    with torch.no_grad():
        y.add_(1)
    out.backward()
    same(x.grad, torch.full((3,), 2.0, device="cuda"))


@pytest.mark.slow
def test_inductor():
    """A guarded module compiled for the device, and compiled code called from a guarded one."""
    net = Net().cuda()
    compiled = torch.compile(net, fullgraph=True)
    compare_with_clones(compiled, reference(net), batch, strides=False, exact=False)
    inner = torch.compile(lambda x: (x.add_(1), x * x)[1], fullgraph=True)

    @freeze_inputs
    def outer(x):
        return inner(x) + x

    compare_with_clones(
        outer, lambda x: (x + 1) * (x + 1) + (x + 1), lambda: (batch()[0],), exact=False
    )


def test_attention_kernels():
    """The fused attention kernels run on handles, and a write afterwards is a copy."""
    q = torch.randn(1, 2, 16, 8, device="cuda", dtype=torch.float16)

    @freeze_inputs
    def forward(q):
        y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        q.zero_()
        return y, q

    caller = Caller(q)
    y, zero = forward(q)
    same(y, nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert not zero.any()
    caller.check()


def test_moving_between_devices():
    """`to`, `cpu` and `cuda` inside forward; a write through `.to` of the same device is a write."""

    @freeze_inputs
    def forward(x):
        host = x.cpu()
        same_device = x.to("cuda")
        host.add_(1)
        same_device.add_(2)
        return host, same_device, x

    x = torch.zeros(3, device="cuda")
    caller = Caller(x)
    with record() as log:
        host, moved, itself = forward(x)
    caller.check()
    same(host, torch.ones(3))
    same(moved, torch.full((3,), 2.0, device="cuda"))
    same(itself, torch.full((3,), 2.0, device="cuda"))
    assert [m.op for m in log] == ["add_"]
