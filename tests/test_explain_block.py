"""Entering and leaving: nested blocks, one object twice, decorators, generators, threads."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from safemodule import _explain_compat
from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of

needs_sight = pytest.mark.skipif(
    not _explain_compat.SEES_HOOKS, reason="this torch does not show the hooks of a thread"
)


def state():
    """Return what a block changes in a thread, and in the process."""
    return (
        torch._C._len_torch_dispatch_stack(),
        _explain_compat.top_hooks(),
        torch._C._autograd._saved_tensors_hooks_disable,
        torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
    )


@pytest.fixture(autouse=True)
def _leaves_nothing():
    before = state()
    yield
    assert state() == before
    assert before[:2] == (0, None)


def broken():
    """Overwrite what backward needs."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def test_not_active_outside():
    """Before and after a block the error is PyTorch's own."""
    for _ in range(2):
        with pytest.raises(RuntimeError) as info:
            broken()
        assert type(info.value) is RuntimeError
        with explain():
            pass


def test_nested():
    """A block inside of a block changes nothing, and leaving it leaves the outer one."""
    with explain():
        depth = state()[0]
        with explain():
            assert state()[0] == depth
            with pytest.raises(InplaceError):
                broken()
        with pytest.raises(InplaceError):
            broken()


def test_nested_checks_values_inside_only():
    """An inner block may check values; the outer one goes on without."""

    def silent():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.zero_()
        y.sum().backward()

    with explain():
        silent()
        with explain(check_values=True):
            with pytest.raises(InplaceError):
                silent()
            with explain(), pytest.raises(InplaceError):
                silent()
        silent()


def test_nested_blocks_note_once():
    """A write is one write, in however many blocks."""
    for inner in (False, True):
        with explain(), explain(check_values=inner), explain(), pytest.raises(InplaceError) as info:
            x = torch.ones(3, requires_grad=True)
            y = x.exp()
            for _ in range(3):
                y.add_(1)
            y.sum().backward()
        assert "written by add_, 3 times: versions 1 to 3" in str(info.value)


def test_one_object_many_times():
    """One object can be entered again, also inside of itself."""
    block = explain()
    for _ in range(2):
        with block, block, pytest.raises(InplaceError):
            broken()


def test_exceptions_pass():
    """Any other exception leaves as it is, and the block is left."""
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as info, explain():
        raise error
    assert info.value is error
    with pytest.raises(RuntimeError, match="no such thing") as info, explain():
        raise RuntimeError("no such thing")
    assert type(info.value) is RuntimeError


def test_out_of_memory_is_not_touched():
    """Subclasses of RuntimeError are somebody else's, whatever they say."""

    class Mine(RuntimeError):
        pass

    with pytest.raises(Mine), explain():
        raise Mine("a leaf Variable that requires grad is being used in an in-place operation.")


def test_failed_explanation(monkeypatch):
    """If an explanation fails, the error is PyTorch's own, with a note."""
    from safemodule import _explain

    def fails(*_):
        raise LookupError("deliberately")

    monkeypatch.setattr(_explain, "explain_refusal", fails)
    with pytest.raises(RuntimeError, match="a leaf Variable") as info, explain():
        torch.ones(3, requires_grad=True).add_(1)
    assert type(info.value) is RuntimeError
    assert any("deliberately" in note for note in info.value.__notes__)


def test_traceback_ends_in_the_users_line():
    """The traceback of an explained error still leads to the line that was refused."""
    with pytest.raises(InplaceError) as info, explain():
        leaf = torch.ones(3, requires_grad=True)
        leaf.add_(1)
    trace = info.value.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_code is test_traceback_ends_in_the_users_line.__code__
    assert type(info.value.__context__) is RuntimeError
    assert info.value.__suppress_context__


@pytest.mark.parametrize("decorate", [explain, explain(), explain(check_values=True)])
def test_decorator(decorate):
    """A decorated function runs in a block, and looks like itself."""

    @decorate
    def train(x: int, *, y: str = "a") -> None:
        """Train."""
        broken()

    assert train.__name__ == "train"
    assert train.__doc__ == "Train."
    assert str(inspect.signature(train)) == "(x: 'int', *, y: 'str' = 'a') -> 'None'"
    for _ in range(2):
        with pytest.raises(InplaceError):
            train(1, y="b")


def test_decorated_method():
    """A method can be decorated."""

    class Net(nn.Module):
        @explain()
        def forward(self, x):
            y = x.exp()
            y.mul_(2)
            return y

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(InplaceError, match="written by mul_"):
        Net()(x).sum().backward()


def test_decorated_recursion():
    """A decorated function may call itself."""

    @explain()
    def f(n):
        return f(n - 1) if n else state()[0]

    assert f(3) == 1


def test_decorated_generator():
    """A generator is in the block only while it runs itself, and its notes last."""

    @explain()
    def steps():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        sent = yield "saved"
        y.add_(sent)
        try:
            yield "written"
        except KeyError:
            yield "thrown"
        y.sum().backward()

    outside = state()
    run = steps()
    assert next(run) == "saved"
    assert state() == outside
    assert run.send(1.0) == "written"
    assert run.throw(KeyError()) == "thrown"
    assert state() == outside
    with pytest.raises(InplaceError, match="written by add_"):
        next(run)


def test_decorated_generator_returns_and_closes():
    """The value of a generator is kept, and closing it runs its `finally` in the block."""
    seen = []

    @explain()
    def steps():
        try:
            yield 1
        finally:
            seen.append(state()[0])
        return "end"

    def outer():
        seen.append((yield from steps()))

    assert list(outer()) == [1]
    assert seen == [1, "end"]
    run = steps()
    next(run)
    run.close()
    assert seen == [1, "end", 1]


def test_decorated_coroutine():
    """Tasks that take turns do not see each other's blocks."""

    @explain()
    async def inside():
        for _ in range(3):
            assert state()[0] == 1
            await asyncio.sleep(0)
        broken()

    async def outside():
        for _ in range(3):
            assert state()[0] == 0
            await asyncio.sleep(0)

    async def both():
        return await asyncio.gather(inside(), outside(), return_exceptions=True)

    failed, fine = asyncio.run(both())
    assert type(failed) is InplaceError
    assert fine is None


def test_decorated_asynchronous_generator():
    """So do asynchronous generators."""

    @explain()
    async def steps():
        try:
            sent = yield state()[0]
            yield sent
        except KeyError:
            yield "thrown"
        finally:
            assert state()[0] == 1

    async def run():
        found = [item async for item in steps()]
        one = steps()
        found.append(await one.asend(None))
        assert state()[0] == 0
        found.append(await one.athrow(KeyError()))
        await one.aclose()
        return found

    assert asyncio.run(run()) == [1, None, 1, "thrown"]


@needs_sight
def test_generator_left_open():
    """A block that a generator keeps open may end after one that was entered later."""

    def keep():
        with explain():
            yield

    first, second = keep(), keep()
    next(first)
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        outer = _explain_compat.top_hooks()
        next(second)
        first.close()
        assert _explain_compat.top_hooks() == outer
        second.close()


def test_modes_left_out_of_order():
    """A mode of somebody else's on top stays, as it is theirs."""
    from torch.utils.flop_counter import FlopCounterMode

    def keep():
        with explain():
            yield

    run = keep()
    next(run)
    counter = FlopCounterMode(display=False)
    with counter:
        run.close()
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert counter.get_total_flops() == 16


def test_other_threads():
    """A block covers the thread that enters it, and no other."""
    found = []

    def work():
        found.append(state()[:2])
        try:
            broken()
        except RuntimeError as error:
            found.append(type(error))

    with explain():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with pytest.raises(InplaceError):
            broken()
    assert found == [(0, None), RuntimeError]


def test_threads_with_blocks_of_their_own():
    """Blocks in several threads do not disturb each other."""
    errors = []
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(20):
            try:
                with explain():
                    if _explain_compat.SEES_HOOKS:
                        torch.func.grad(lambda t: (t * t).sum())(torch.ones(2))
                    broken()
            except InplaceError as error:
                errors.append("written by add_" in str(error) or "+=" in str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [True] * 80


def test_left_in_another_thread():
    """A block that another thread leaves does not break that thread's own stacks."""
    block = explain()
    with explain():
        thread = threading.Thread(target=lambda: block.__exit__(None, None, None))
        thread.start()
        thread.join()
        assert state()[0] == 1


@needs_sight
def test_hooks_that_somebody_else_took_off():
    """Leaving takes off our own hooks and no others, also where ours are gone already."""
    block = explain()
    block.__enter__()
    _explain_compat.pop_hooks()
    block.__exit__(None, None, None)
    assert state()[0] == 0


def test_without_sight_of_the_hooks(monkeypatch):
    """On a torch that does not show them, blocks end in the order in which they began."""
    monkeypatch.setattr(_explain_compat, "SEES_HOOKS", False)
    with explain(), pytest.raises(InplaceError):
        broken()
    monkeypatch.undo()
    assert state()[0] == 0


@needs_sight
def test_hooks_turned_off_below_those_of_somebody_else():
    """A transform that does not mind hooks gets its way, whosever they are."""
    on = torch._C._autograd._saved_tensors_hooks_enable
    with explain(), saved_tensors_hooks(lambda t: t, lambda t: t):
        off = torch._C._autograd._saved_tensors_hooks_disable
        off("not now", False)
        assert not _explain_compat.hooks_enabled()
        on()
        with pytest.raises(RuntimeError, match="not now"):
            off("not now")
        on()


def test_error_can_be_pickled():
    """The error and its explanation survive a pickle: strings and numbers."""
    with pytest.raises(InplaceError) as info, explain():
        broken()
    copy = pickle.loads(pickle.dumps(info.value))
    assert str(copy) == str(info.value)
    assert explanation_of(copy) == explanation_of(info.value)


def test_explanation_of_what_led_to_an_error():
    """An explanation is found behind errors raised from it or while it was handled."""
    with pytest.raises(KeyError) as info, explain():
        try:
            broken()
        except InplaceError as error:
            raise KeyError("other") from error
    assert explanation_of(info.value) is not None
    with pytest.raises(KeyError) as info, explain():
        try:
            broken()
        except InplaceError:
            raise KeyError("other")  # noqa: B904
    assert explanation_of(info.value) is not None
    assert explanation_of(KeyError()) is None
    assert explanation_of(None) is None
