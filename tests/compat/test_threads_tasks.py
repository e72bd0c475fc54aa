"""Threads and asyncio tasks: nothing leaks from one to another."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from safemodule import InputMutationError, SafeModule, freeze_inputs, get_mode, mode, record
from tests.helpers import Caller, same

WORKERS, CALLS = 8, 20


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Many threads write at one line."""
    caplog.set_level(logging.ERROR, logger="safemodule")


class Net(SafeModule):
    """Reads, writes, reads, and backpropagates."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask, step):
        y = self.linear(x).masked_fill(mask, 0.0)
        mask[:, step % 4] = True
        x.mul_(step + 1)
        return (y * x).masked_fill(mask, 0.0)


def in_threads(work):
    """Run `work(i)` in many threads that start together; return the results in order."""
    start = threading.Barrier(WORKERS)

    def run(i):
        start.wait(timeout=30)
        return work(i)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(run, range(WORKERS)))


def test_one_module_with_shared_inputs():
    """Eight threads call one module with the same tensors: each gets its own copies."""
    module = Net()
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    mask = torch.zeros(2, 4, dtype=torch.bool)
    caller = Caller(x, mask)

    def work(i):
        out = [module(x, mask, i + j) for j in range(CALLS)]
        grads = [torch.autograd.grad(o.sum(), x)[0] for o in out]
        return [o.detach() for o in out], grads

    results = in_threads(work)
    caller.check()
    for i, (outs, grads) in enumerate(results):
        for j, (out, grad) in enumerate(zip(outs, grads, strict=True)):
            step = i + j
            written = mask.clone()
            written[:, step % 4] = True
            expected = (module.linear(x) * (x * (step + 1))).masked_fill(written, 0.0)
            same(out, expected.detach())
            same(grad, torch.autograd.grad(expected.sum(), x)[0], exact=False)


def test_backward_in_other_threads():
    """Graphs made in one thread, differentiated in others."""
    module = Net()
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    mask = torch.zeros(2, 4, dtype=torch.bool)
    outs = [module(x, mask, i) for i in range(WORKERS)]
    grads = in_threads(lambda i: torch.autograd.grad(outs[i].sum(), x)[0])
    for i, grad in enumerate(grads):
        same(grad, torch.autograd.grad(module(x, mask, i).sum(), x)[0])


def test_threads_inside_one_guarded_call():
    """A forward that spreads work over threads, which all read and one of which writes."""

    @freeze_inputs
    def forward(x):
        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(lambda i: (x * i).sum(), range(4)))
            pool.submit(x.add_, 1).result()
            after = list(pool.map(lambda i: (x * i).sum(), range(4)))
        return torch.stack(sums), torch.stack(after)

    x = torch.ones(3)
    caller = Caller(x)
    before, after = forward(x)
    caller.check()
    same(before, torch.tensor([0.0, 3.0, 6.0, 9.0]))
    same(after, torch.tensor([0.0, 6.0, 12.0, 18.0]))


def test_modes_are_per_thread():
    """A block in one thread does not touch another thread's mode."""
    module = freeze_inputs(lambda x: x.add_(1))

    def work(i):
        strict = i % 2 == 0
        refused = 0
        for _ in range(CALLS):
            x = torch.ones(2)
            if not strict:
                same(module(x), torch.full((2,), 2.0))
                assert get_mode() == "copy"
                continue
            with mode("strict"):
                try:
                    module(x)
                except InputMutationError:
                    refused += 1
            same(x, torch.ones(2))
        return refused

    assert in_threads(work) == [CALLS, 0] * (WORKERS // 2)


def test_logs_are_per_thread():
    """`record()` holds the writes of its own thread, counted, and no other's."""
    module = freeze_inputs(lambda x: x.add_(1))

    def work(i):
        with record() as log:
            for _ in range(i + 1):
                module(torch.ones(2))
        return [(m.op, m.count) for m in log]

    with record() as around:
        assert in_threads(work) == [[("add_", i + 1)] for i in range(WORKERS)]
    assert not around


def test_gradient_modes_are_per_thread():
    """A guarded call leaves the grad mode of its thread as it was."""
    module = Net()

    def work(i):
        with torch.set_grad_enabled(i % 2 == 0):
            x = torch.ones(2, 4, requires_grad=True)
            outs = [
                module(x, torch.zeros(2, 4, dtype=torch.bool), 1).requires_grad
                for _ in range(CALLS)
            ]
            return set(outs), torch.is_grad_enabled()

    for i, (flags, enabled) in enumerate(in_threads(work)):
        assert flags == {i % 2 == 0}
        assert enabled == (i % 2 == 0)


def test_data_parallel_replicas_in_threads():
    """`replicate` and `parallel_apply` of DataParallel's kind: deep copies, one per thread."""
    import copy

    modules = [copy.deepcopy(Net()) for _ in range(WORKERS)]
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    caller = Caller(x, mask)
    outs = in_threads(lambda i: modules[i](x, mask, 2).detach())
    caller.check()
    for out in outs[1:]:
        same(out, outs[0])


# -- tasks -----------------------------------------------------------------------------------------


def test_tasks_with_different_modes():
    """Interleaved tasks: each keeps the mode it was given."""

    class Waits(SafeModule):
        async def forward(self, x, ticks):
            y = x * 2
            for _ in range(ticks):
                await asyncio.sleep(0)
            x.add_(1)
            return y + x

    module = Waits()

    async def strict(i):
        with mode("strict"):
            try:
                await module(torch.full((2,), float(i)), i)
            except InputMutationError:
                return "refused"
            return "written"

    async def copies(i):
        x = torch.full((2,), float(i))
        out = await module(x, i)
        same(x, torch.full((2,), float(i)))
        same(out, torch.full((2,), 3.0 * i + 1))
        return get_mode()

    async def main():
        tasks = [strict(i) if i % 2 else copies(i) for i in range(10)]
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == ["copy", "refused"] * 5
    assert get_mode() == "copy"


def test_tasks_that_share_an_input():
    """One tensor in many calls that are under way at the same time."""

    @freeze_inputs
    async def forward(x, i):
        y = x * x
        await asyncio.sleep(0)
        x.add_(i)
        await asyncio.sleep(0)
        return (y + x).sum()

    async def main(x):
        return await asyncio.gather(*[forward(x, i) for i in range(5)])

    x = torch.ones(3, requires_grad=True)
    caller = Caller(x)
    outs = asyncio.run(main(x))
    caller.check()
    for i, out in enumerate(outs):
        same(out.detach(), torch.tensor(3.0 * (2 + i)))
        same(torch.autograd.grad(out, x)[0], torch.full((3,), 3.0))


def test_guarded_calls_in_executors_of_a_loop():
    """`asyncio.to_thread` carries the mode of the task into the thread."""
    module = freeze_inputs(lambda x: x.add_(1))

    async def refused():
        with mode("strict"), pytest.raises(InputMutationError):
            await asyncio.to_thread(module, torch.ones(2))

    async def main():
        await asyncio.gather(refused(), asyncio.to_thread(module, torch.ones(2)))

    asyncio.run(main())
