"""On a CUDA device: mixed precision, streams, graphs, pinned memory, kernels, and memory itself.

What does not need streams or graphs runs on the CPU too: so the bodies of these tests are known to be
right where no device is at hand.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, compare_with_clones, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Each device."""
    return request.param


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


def batch(rows=4, device="cuda"):
    """Return inputs on the device."""
    x = torch.linspace(-1, 1, 8 * rows, device=device).reshape(rows, 8).requires_grad_()
    return x, torch.zeros(rows, 8, dtype=torch.bool, device=device)


def reference(net):
    """Return the out-of-place form of a `Net`."""

    def forward(x, mask):
        y = net.linear(x).masked_fill(mask, 0.0)
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], 1)
        return (y * (x * 0.5)).masked_fill(mask, 0.0)

    return forward


def test_results_and_gradients(device):
    """The same on each device."""
    net = Net().to(device)
    outcome = compare_with_clones(
        net,
        reference(net),
        lambda: batch(device=device),
        parameters=list(net.parameters()),
        exact=False,
    )
    assert {m.device for m in outcome.writes} == {"cuda:0" if device == "cuda" else "cpu"}


def train(forward, net, device, dtype):
    """Take two steps in mixed precision, and return the losses and the parameters."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    x, mask = batch(device=device)
    caller = Caller(x, mask)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = forward(x, mask).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    x.grad = None
    caller.check()
    return [*losses, *(parameter.detach() for parameter in net.parameters())]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_scaler(device, dtype):
    """With a GradScaler; losses and parameters are those of the model that writes nothing."""
    net, plain = Net().to(device), Net().to(device)
    found, expected = train(net, net, device, dtype), train(reference(plain), plain, device, dtype)
    for actual, wanted in zip(found, expected, strict=True):
        same(actual, wanted, exact=False)


def kernels(function, *args):
    """Return what one run starts on the device: names of kernels and copies, sorted."""
    function(*args)  # first calls fill memos
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        function(*args)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profile.events() if event.device_type == cuda]
    return sorted(name for name in names if not name.startswith("Activity Buffer"))


@pytest.mark.cuda
@pytest.mark.parametrize("grad", [False, True])
def test_kernels(grad):
    """Where nothing is written none is added; a written input adds one copy, once."""

    def reads(x, y):
        return (x[:4] * 2 + y.t().t()[:4]).sum(), x.shape, y

    def writes(x, y):
        x.add_(1)
        if not grad:  # where counts cannot tell what autograd saved, another copy is made
            x.mul_(2)
        return x.sum() + y.sum()

    x, y = (torch.ones(64, 64, device="cuda", requires_grad=grad) for _ in range(2))
    assert kernels(reads, x, y)  # the profiler sees kernels at all
    assert kernels(freeze_inputs(reads), x, y) == kernels(reads, x, y)
    plain = kernels(lambda x, y: writes(x.clone(), y), x, y)
    assert len(kernels(freeze_inputs(writes), x, y)) == len(plain)


@pytest.mark.cuda
def test_nothing_waits_for_the_device():
    """A guarded call that reads, writes, makes views and is on record does not synchronise."""
    net = Net().cuda()
    x, mask = batch()
    net(x, mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with record() as log:
            net(x, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sorted(m.argument for m in log) == ["mask", "x"]


@pytest.mark.cuda
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
        same(out, expected, exact=False)
    caller.check()


@pytest.mark.cuda
def test_a_write_waits_for_its_stream():
    """The copy is made on the current stream: after what was queued there, and before the write."""

    @freeze_inputs
    def forward(x):
        y = x * 2
        x.add_(1)
        return y + x

    x = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # some 30 ms: what follows waits for it
        x.fill_(1.0)
        out = forward(x)
    torch.cuda.current_stream().wait_stream(side)
    same(out, torch.full_like(out, 4.0))
    same(x, torch.ones_like(x))


@pytest.mark.cuda
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


@pytest.mark.cuda
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


@pytest.mark.cuda
def test_graph_of_a_training_step():
    """Forward, backward and optimizer of a guarded module in one graph, replayed on new data."""
    net, plain = Net().cuda(), Net().cuda()
    x, mask = (t.detach() for t in batch())

    def step(forward, net, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, mask).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (net, plain)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(net, net, optimizers[0])
            step(reference(plain), plain, optimizers[1])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step(net, net, optimizers[0])
    for value in (0.5, -0.25):
        x.fill_(value)
        caller = Caller(x, mask)
        graph.replay()
        same(loss.detach(), step(reference(plain), plain, optimizers[1]).detach(), exact=False)
        caller.check()
    for mine, wanted in zip(net.parameters(), plain.parameters(), strict=True):
        same(mine.detach(), wanted.detach(), exact=False)


@pytest.mark.cuda
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


@pytest.mark.cuda
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


@pytest.mark.cuda
@pytest.mark.parametrize("grad", [False, True])
def test_memory(grad):
    """Reading costs none; a written slice costs the slice and not its large base."""
    base = torch.zeros(64, 1 << 20, device="cuda", requires_grad=grad)

    @freeze_inputs
    def reads(x):
        return x.view(2, -1)[0].sum()

    @freeze_inputs
    def writes(x):
        x.add_(1)
        if not grad:
            x.mul_(2)
        return x.sum()

    # Reserved in whole segments: 2 MiB for small tensors, 20 MiB for the copy.
    for function, limit, segments in (
        (reads, 1 << 18, 2 << 20),
        (writes, (4 << 20) + (1 << 18), 22 << 20),
    ):
        function(base[0])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        function(base[0])
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() - allocated <= limit
        assert torch.cuda.max_memory_reserved() - reserved <= segments


@pytest.mark.cuda
def test_memory_is_flat():
    """Nothing is left of a thousand calls, with the garbage collector off."""
    net = Net().cuda()
    x, mask = batch()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            net(x, mask).sum().backward()
        before = torch.cuda.memory_allocated()
        for _ in range(1000):
            net(x, mask).sum().backward()
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_snapshot_on_the_device(device):
    """`snapshot=True` keeps what was saved from the caller's later writes."""

    @freeze_inputs(snapshot=True)
    def forward(x):
        return (x * x).sum()

    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 1
    out = forward(y)
    with torch.no_grad():
        y.add_(1)
    out.backward()
    same(x.grad, torch.full((3,), 2.0, device=device))


@pytest.mark.slow
@pytest.mark.cuda
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


def test_attention_kernels(device):
    """The fused attention kernels run on handles, and a write afterwards is a copy."""
    q = torch.randn(1, 2, 16, 8, device=device, dtype=torch.float16)

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


@pytest.mark.cuda
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
