"""The mode and who decides it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import runpy
import threading

import pytest

from safemodule import _modes
from safemodule._modes import MODES, check_mode, effective, get_mode, mode, set_mode


@pytest.fixture(autouse=True)
def _default(monkeypatch):
    """Start from the default, whatever the environment says."""
    monkeypatch.setattr(_modes, "_environment", "copy")
    set_mode(None)
    yield
    set_mode(None)


def in_new_thread(func):
    """Return what ``func`` returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(func()))
    thread.start()
    thread.join()
    return results[0]


def test_default_is_copy():
    """Nobody said anything."""
    assert get_mode() == "copy"
    assert effective(None) == "copy"


def test_precedence_from_the_far_end():
    """Each nearer setting wins over the farther ones."""
    set_mode("warn")
    assert effective(None) == "warn"
    assert effective("strict") == "strict"
    with mode("off"):
        assert effective("strict") == "off"
        with mode("copy"):
            assert effective("strict") == "copy"
        assert effective("strict") == "off"
    assert effective("strict") == "strict"
    set_mode(None)
    assert effective(None) == "copy"


def test_set_mode_none_goes_back_to_the_environment(monkeypatch):
    """None forgets set_mode, not the environment variable."""
    monkeypatch.setattr(_modes, "_environment", "strict")
    set_mode("off")
    set_mode(None)
    assert get_mode() == "strict"


@pytest.mark.parametrize("value", MODES)
def test_environment_is_read_at_import(monkeypatch, value):
    """SAFEMODULE_MODE is the mode where nobody says anything nearer."""
    monkeypatch.setenv("SAFEMODULE_MODE", value)
    fresh = runpy.run_path(_modes.__file__)
    assert fresh["get_mode"]() == value
    assert fresh["effective"]("copy") == "copy"


def test_empty_environment_is_the_default(monkeypatch):
    """``SAFEMODULE_MODE= python train.py`` is the shell's way to say unset."""
    monkeypatch.setenv("SAFEMODULE_MODE", "")
    assert runpy.run_path(_modes.__file__)["get_mode"]() == "copy"


def test_bad_environment_is_refused_at_import(monkeypatch):
    """A misspelt value stops the program at once and lists the legal ones."""
    monkeypatch.setenv("SAFEMODULE_MODE", "stirct")
    with pytest.raises(ValueError, match="environment variable SAFEMODULE_MODE must be one of 'co"):
        runpy.run_path(_modes.__file__)


@pytest.mark.parametrize("setter", [check_mode, mode, set_mode])
def test_bad_value_is_refused_with_the_legal_ones(setter):
    """The text lists the legal modes and shows what came."""
    with pytest.raises(ValueError) as caught:
        setter("COPY")
    assert str(caught.value) == ("mode must be one of 'copy', 'warn', 'strict', 'off', got 'COPY'")
    assert get_mode() == "copy"


@pytest.mark.parametrize("value", [True, 1, ("copy",), b"copy", mode])
@pytest.mark.parametrize("setter", [check_mode, mode, set_mode])
def test_no_string_is_a_type_error(setter, value):
    """A value that is no string is another mistake: it was meant for another parameter."""
    with pytest.raises(TypeError, match="'strict', 'off', got "):
        setter(value)


def test_none_is_for_set_mode_alone():
    """There is nothing a block could go back to."""
    with pytest.raises(TypeError, match="NoneType"):
        mode(None)


def test_check_mode_names_the_setting():
    """A class keyword of another name can be refused in its own words."""
    with pytest.raises(ValueError, match=r"^class keyword mode must be one of "):
        check_mode("x", "class keyword mode")


def test_block_ends_when_it_raises():
    """An exception ends the block as its end does."""
    with pytest.raises(KeyError), mode("strict"):
        assert get_mode() == "strict"
        raise KeyError
    assert get_mode() == "copy"


def test_one_object_may_be_entered_again():
    """A block is reusable, and reentrant."""
    strict = mode("strict")
    for _ in range(2):
        with strict, mode("off"):
            with strict:
                assert get_mode() == "strict"
            assert get_mode() == "off"
        assert get_mode() == "copy"


def test_blocks_that_end_out_of_order():
    """Each takes away its own value, so nothing leaks when generators interleave."""
    outer, inner = mode("strict"), mode("off")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert get_mode() == "off"
    inner.__exit__(None, None, None)
    assert get_mode() == "copy"


def test_block_that_ends_in_another_context():
    """An async generator may be finalised elsewhere: no error, and nothing is taken away."""
    strict = mode("strict")
    contextvars.copy_context().run(strict.__enter__)
    with mode("warn"):
        strict.__exit__(None, None, None)
        assert get_mode() == "warn"


def test_decorated_function():
    """The block is around each call, also when it calls itself."""

    @mode("strict")
    def fact(n, *, seen):
        """Factorial."""
        seen.append(get_mode())
        return n * fact(n - 1, seen=seen) if n > 1 else 1

    seen = []
    assert fact(3, seen=seen) == 6
    assert seen == ["strict"] * 3
    assert get_mode() == "copy"
    assert (fact.__name__, fact.__doc__) == ("fact", "Factorial.")
    assert str(inspect.signature(fact)) == "(n, *, seen)"


def test_decorated_method():
    """A decorated method binds like any function."""

    class Net:
        @mode("off")
        def forward(self):
            return self, get_mode()

    net = Net()
    assert net.forward() == (net, "off")


def test_decorated_coroutine_function():
    """The block is around the awaited body, not around making the coroutine."""

    @mode("strict")
    async def work():
        before = get_mode()
        await asyncio.sleep(0)
        return before, get_mode()

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(work()) == ("strict", "strict")
    assert get_mode() == "copy"


def generator():
    """Run in steps."""
    yield


async def async_generator():
    """Run in steps."""
    yield


class Class:
    """Be no function."""


@pytest.mark.parametrize("func", [generator, async_generator, Class])
def test_what_cannot_be_decorated_is_refused_by_name(func):
    """A decorator that has no effect is worse than an error."""
    with pytest.raises(TypeError, match=f"cannot decorate the .* {func.__qualname__}"):
        mode("strict")(func)


def test_set_mode_reaches_all_threads_and_a_block_its_own():
    """set_mode is of the process; a block is of the thread."""
    set_mode("warn")
    with mode("strict"):
        assert in_new_thread(get_mode) == "warn"
    assert in_new_thread(get_mode) == "warn"


def test_tasks_inherit_a_block_and_do_not_leak_their_own():
    """A task sees the blocks it was started in; its own stay its own."""

    async def child():
        inherited = get_mode()
        with mode("off"):
            await asyncio.sleep(0)
            return inherited, get_mode()

    async def parent():
        with mode("strict"):
            task = asyncio.create_task(child())
            await asyncio.sleep(0)  # the child is inside its block now
            own = get_mode()
            return own, await task

    assert asyncio.run(parent()) == ("strict", ("strict", "off"))


def test_repr_shows_the_value():
    """In a debugger the value is what matters."""
    assert repr(mode("strict")) == "mode('strict')"


def test_public_names_show_the_public_module():
    """The module in a traceback is the one a user imports from."""
    assert {mode.__module__, set_mode.__module__, get_mode.__module__} == {"safemodule"}
