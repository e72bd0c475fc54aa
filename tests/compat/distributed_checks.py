"""What each of two processes checks; run by test_distributed.py in processes of its own."""

from __future__ import annotations

import datetime as dt
import logging
import traceback
import warnings

import torch
import torch.distributed as dist
from torch import nn

from safemodule import SafeModule, freeze_inputs, record
from tests.helpers import Caller, same

CHECKS = {}


def check(function):
    """Register a check; it runs in both processes at the same time."""
    CHECKS[function.__name__] = function
    return function


def run_all(rank, store, out):
    """Run every check in one process, and write for each "ok" or the traceback to a file."""
    logging.getLogger("safemodule").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=dt.timedelta(seconds=60),
    )
    results = {}
    for name, function in CHECKS.items():
        torch.manual_seed(0)
        try:
            function(rank)
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        dist.barrier()
    torch.save(results, f"{out}.{rank}")
    dist.destroy_process_group()


class Plain(nn.Module):
    """Reads, writes and reads its input, and keeps a running mean of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, mask):
        y = self.first(x).tanh().masked_fill(mask, 0.0)
        mask[:, 0] = True
        x.mul_(0.5)
        with torch.no_grad():
            self.seen.add_(x.mean(0))
        return self.second(y * x)


class Safe(SafeModule, Plain):
    """The same, guarded."""


class OutOfPlace(Plain):
    """The same, out of place."""

    def forward(self, x, mask):
        y = self.first(x).tanh().masked_fill(mask, 0.0)
        x = x * 0.5
        with torch.no_grad():
            self.seen.add_(x.mean(0))
        return self.second(y * x)


def pair():
    """Return a guarded and an out-of-place module with equal parameters."""
    torch.manual_seed(0)
    safe, plain = Safe(), OutOfPlace()
    plain.load_state_dict(safe.state_dict())
    return safe, plain


def batch(rank):
    """Return another batch for each process."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4) + rank
    return x, torch.zeros(3, 4, dtype=torch.bool)


def gradients(module):
    """Return all gradients, whole."""
    found = {}
    for name, p in module.named_parameters():
        grad = p.grad
        found[name.removeprefix("module.")] = (
            grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        )
    return found


def assert_equal_gradients(mine, theirs):
    """Assert that two modules have the same gradients."""
    mine, theirs = gradients(mine), gradients(theirs)
    assert list(mine) == list(theirs)
    for name, grad in mine.items():
        same(grad, theirs[name], name, exact=False)


@check
def data_parallel(rank):
    """Averaged gradients equal those of a plain module; the batches stay, and so do buffers."""
    safe, plain = pair()
    wrapped, other = (
        nn.parallel.DistributedDataParallel(safe),
        nn.parallel.DistributedDataParallel(plain),
    )
    for _ in range(2):
        x, mask = batch(rank)
        caller = Caller(x, mask)
        wrapped(x, mask).square().sum().backward()
        caller.check()
        other(*batch(rank)).square().sum().backward()
    assert_equal_gradients(wrapped, other)
    same(safe.seen, plain.seen)


@check
def data_parallel_as_the_guarded_part(rank):
    """DDP around a plain module, inside a guarded one: handles go into DDP."""
    safe, plain = pair()
    inner = nn.parallel.DistributedDataParallel(safe)

    class Outer(SafeModule):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x, mask):
            y = self.inner(x, mask)
            x.add_(1)
            return y.sum() + x.sum()

    x, mask = batch(rank)
    caller = Caller(x, mask)
    Outer()(x, mask).backward()
    caller.check()
    other = nn.parallel.DistributedDataParallel(plain)
    other(*batch(rank)).sum().backward()
    assert_equal_gradients(inner, other)


@check
def buffers_are_broadcast(rank):
    """DDP broadcasts the buffers of process 0 before forward."""
    safe, _ = pair()
    wrapped = nn.parallel.DistributedDataParallel(safe)
    with torch.no_grad():
        safe.seen.fill_(float(rank))
    wrapped(*batch(0))
    same(safe.seen, batch(0)[0].mul(0.5).mean(0))


@check
def no_sync_and_accumulation(rank):
    """Gradients that are accumulated before they are averaged."""
    safe, plain = pair()
    wrapped, other = (
        nn.parallel.DistributedDataParallel(safe),
        nn.parallel.DistributedDataParallel(plain),
    )
    for module in (wrapped, other):
        with module.no_sync():
            module(*batch(rank)).sum().backward()
        module(*batch(rank)).sum().backward()
    assert_equal_gradients(wrapped, other)


@check
def static_graph_with_checkpointing(rank):
    """DDP with a static graph and reentrant checkpoints of guarded blocks."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, mask):
            return checkpoint(self.inner, x, mask, use_reentrant=True)

    safe, plain = pair()
    wrapped = nn.parallel.DistributedDataParallel(Checkpointed(safe), static_graph=True)
    other = nn.parallel.DistributedDataParallel(plain)
    x, mask = batch(rank)
    x.requires_grad_()
    caller = Caller(x, mask)
    wrapped(x, mask).sum().backward()
    x.grad = None
    caller.check()
    other(*batch(rank)).sum().backward()
    assert_equal_gradients(safe, plain)


@check
def fully_shard(rank):
    """FSDP2: parameters sharded, gradients equal to those of a plain module."""
    from torch.distributed.fsdp import fully_shard as shard

    if not hasattr(torch.cpu.Stream, "record_event"):
        return  # before torch 2.7 it needs an accelerator
    safe, plain = pair()
    for layer in (safe.first, safe.second):
        shard(layer)
    shard(safe)
    other = nn.parallel.DistributedDataParallel(plain)
    for _ in range(2):
        x, mask = batch(rank)
        caller = Caller(x, mask)
        out = safe(x, mask)
        caller.check()
        expected = other(*batch(rank))
        same(out.detach(), expected.detach(), exact=False)
        out.sum().backward()
        expected.sum().backward()
    assert isinstance(safe, SafeModule)
    assert_equal_gradients(safe, plain)


@check
def dtensor_inputs(rank):
    """A DTensor is cloned on entry: its local part stays, and the type is kept."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    before = x.to_local().clone()

    @freeze_inputs
    def forward(x):
        y = x * 2
        x.add_(1)
        return y, x

    y, out = forward(x)
    assert type(y) is type(out) is DTensor
    same(x.to_local(), before)
    same(out.full_tensor(), torch.arange(8.0).reshape(4, 2) + 1)
    same(y.full_tensor(), torch.arange(8.0).reshape(4, 2) * 2)


@check
def tensor_parallel(rank):
    """A guarded module whose linear layers are split over the processes."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    class Block(SafeModule):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            y = self.down(self.up(x).relu())
            x.mul_(2)
            return y + x

    block = Block()
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = block(x)
    parallelize_module(
        block,
        init_device_mesh("cpu", (2,)),
        {"up": ColwiseParallel(), "down": RowwiseParallel()},
    )
    caller = Caller(x)
    same(block(x).detach(), expected.detach(), exact=False)
    caller.check()


def collective(run, expected, *tensors):
    """Assert that a collective that writes an input leaves the caller's tensors alone."""
    caller = Caller(*tensors)
    with record() as log:
        out = freeze_inputs(run)(*tensors)
    caller.check()
    for mine, theirs in zip(
        out if isinstance(out, (list, tuple)) else [out], expected, strict=True
    ):
        same(mine, theirs)
    return log


@check
def all_reduce(rank):
    """`all_reduce` writes its argument: a copy, on record with its name."""

    def run(x):
        dist.all_reduce(x)
        return x

    log = collective(run, [torch.full((3,), 3.0)], torch.full((3,), 1.0 + rank))
    if hasattr(dist.distributed_c10d, "has_torch_function"):
        assert [(m.op, m.argument) for m in log] == [("all_reduce", "x")]
    else:  # older versions of torch do not say what a collective does with a tensor
        assert [(m.op, m.argument) for m in log.copies] == [("torch.distributed", "x")]


@check
def asynchronous_all_reduce(rank):
    """The same, waited for later."""

    def run(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x * 1

    collective(run, [torch.full((3,), 3.0)], torch.full((3,), 1.0 + rank))


@check
def broadcast_and_gather(rank):
    """`broadcast`, `all_gather` into a list of the caller, `all_gather_into_tensor`."""

    def run(x, parts, whole):
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(whole, x)
        dist.broadcast(x, src=1)
        return x, parts[0], parts[1], whole

    x = torch.full((2,), float(rank))
    parts, whole = [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
    zero, one = torch.zeros(2), torch.ones(2)
    collective(run, [one, zero, one, torch.cat([zero, one])], x, parts, whole)


@check
def scatter_and_send(rank):
    """`reduce_scatter_tensor`, `send` and `recv`."""

    def run(out, x):
        dist.reduce_scatter_tensor(out, x)
        if rank == 0:
            dist.send(out, dst=1)
        else:
            dist.recv(out, src=0)
        return out

    collective(run, [torch.full((2,), 2.0)], torch.zeros(2), torch.ones(4))


@check
def functional_collectives(rank):
    """The functional collectives, which give new tensors."""
    import torch.distributed._functional_collectives as funcol

    def run(x):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        x.add_(1)
        return torch.as_tensor(y + 0), x

    x = torch.full((3,), 1.0 + rank)
    collective(run, [torch.full((3,), 3.0), x + 1], x)


@check
def differentiable_collectives(rank):
    """`torch.distributed.nn`: gradients through a collective of a handle."""
    import torch.distributed.nn.functional as dist_nn

    def forward(x):
        y = dist_nn.all_reduce(x * 1)
        x.mul_(2)
        return (y * x).sum()

    x = torch.full((3,), 1.0 + rank, requires_grad=True)
    caller = Caller(x)
    freeze_inputs(forward)(x).backward()
    grad, x.grad = x.grad, None
    caller.check()
    # y = 3; d/dx of sum over both processes of y * 2x
    same(grad, torch.full((3,), 2 * (1.0 + 2.0) + 2 * 3.0))


@check
def objects_and_synchronized_norms(rank):
    """`all_gather_object` of a handle gives plain tensors."""

    def run(x):
        found = [None, None]
        dist.all_gather_object(found, x)
        return found

    x = torch.full((2,), float(rank))
    caller = Caller(x)
    found = freeze_inputs(run)(x)
    caller.check()
    assert [type(t) for t in found] == [torch.Tensor] * 2
    same(torch.stack(found), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
