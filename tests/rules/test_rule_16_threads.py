"""Rule 16: first writes from many threads do not race."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from safemodule import SafeModule, freeze, freeze_inputs, record
from safemodule._state import handle_and_root
from tests.helpers import Caller, same

THREADS = 8


def together(functions):
    """Run functions in threads that start at the same moment; return their results."""
    barrier = threading.Barrier(len(functions))

    def run(function):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


@pytest.mark.parametrize("views", [False, True], ids=["input", "views"])
def test_first_writes_to_one_handle(views):
    """Eight threads write disjoint rows of one handle: no write is lost, in 100 rounds."""
    for _ in range(100):
        x = torch.zeros(THREADS, 16)

        @freeze_inputs
        def forward(x):
            rows = list(x) if views else None

            def write(i):
                if views:
                    rows[i].fill_(i + 1.0)
                else:
                    x[i] = i + 1.0

            together([lambda i=i: write(i) for i in range(THREADS)])
            return x * 1

        out = forward(x)
        assert out[:, 0].tolist() == [i + 1.0 for i in range(THREADS)]
        assert not x.any()


def test_reads_while_another_thread_writes():
    """A reader sees the value before or after the write, never the wrong memory."""
    for _ in range(50):
        x = torch.zeros(1000)

        @freeze_inputs
        def forward(x):
            seen = together([lambda: x.add_(1), *[lambda: x.max() * 1 for _ in range(3)]])
            return seen[1:], x * 1

        seen, out = forward(x)
        assert {float(s) for s in seen} <= {0.0, 1.0}
        assert out.tolist() == [1.0] * 1000
        assert not x.any()


def test_a_shared_input_in_eight_calls():
    """Eight threads call one module with one tensor; each has its own copy."""

    class Net(SafeModule):
        def forward(self, x, k):
            for _ in range(20):
                x.add_(k)
            return x

    net = Net()
    x = torch.zeros(256, requires_grad=True)
    caller = Caller(x)
    outs = together([lambda k=k: net(x, k) for k in range(THREADS)])
    caller.check()
    for k, out in enumerate(outs):
        same(out.detach(), torch.full((256,), 20.0 * k))
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1.0] * 256


def test_two_handles_in_opposite_order():
    """Writes of two inputs at once take their locks in one order: no deadlock."""

    @freeze_inputs
    def forward(x, y):
        together(
            [
                lambda: [torch._foreach_add_([x, y], 1.0) for _ in range(50)],
                lambda: [torch._foreach_add_([y, x], 1.0) for _ in range(50)],
            ]
        )
        return x * 1, y * 1

    x, y = torch.zeros(4), torch.zeros(4)
    caller = Caller(x, y)
    forward(x, y)
    caller.check()


class Spy:
    """A lock that notes when it is taken."""

    def __init__(self, lock, taken, name):
        self._lock, self._taken, self._name = lock, taken, name

    def acquire(self):
        self._taken.append(self._name)
        return self._lock.acquire()

    def release(self):
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *exc_info):
        self.release()


def test_locks_are_taken_in_one_order():
    """Whatever the order of the arguments: else two threads could wait for each other for ever."""
    taken = []
    handles = [freeze(torch.zeros(2)) for _ in range(4)]
    for name, handle in enumerate(handles):
        _, root = handle_and_root(handle)
        root.lock = Spy(root.locked(), taken, name)
    orders = []
    for arguments in (handles, handles[::-1], handles[2:] + handles[:2]):
        taken.clear()
        torch._foreach_add_(arguments, 1.0)
        orders.append(tuple(dict.fromkeys(taken)))
    assert len(orders[0]) == 4
    assert len(set(orders)) == 1


def test_a_frozen_tensor_shared_between_threads():
    """`freeze` likewise."""
    for _ in range(50):
        base = torch.zeros(THREADS)
        t = freeze(base)
        together([lambda i=i: t[i : i + 1].fill_(1.0) for i in range(THREADS)])
        assert t.tolist() == [1.0] * THREADS
        assert base.tolist() == [0.0] * THREADS


def test_records_of_other_threads_stay_theirs():
    """A `record` block sees its own thread's writes only."""

    @freeze_inputs
    def forward(x):
        return x.add_(1)

    def run():
        with record() as log:
            for _ in range(10):
                forward(torch.zeros(2))
        return [(m.op, m.count) for m in log]

    assert together([run] * THREADS) == [[("add_", 10)]] * THREADS


def test_modes_of_other_threads_stay_theirs():
    """`with mode(...)` holds for its own thread only."""
    from safemodule import InputMutationError, mode

    @freeze_inputs
    def forward(x):
        return x.add_(1)

    def strict():
        with mode("strict"):
            try:
                forward(torch.zeros(2))
            except InputMutationError:
                return "refused"
            return "written"

    def copy():
        return forward(torch.zeros(2)).tolist()

    assert together([strict, copy] * 4) == ["refused", [1, 1]] * 4
