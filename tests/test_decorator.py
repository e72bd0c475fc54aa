"""`freeze_inputs`: what may be decorated, how arguments are named, what is preserved."""

from __future__ import annotations

import asyncio
import functools
import inspect
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import Tensor, nn

import safemodule
from safemodule import InputMutationError, Mutable, freeze_inputs, mode, record, set_mode
from tests.helpers import Caller, is_plain

PACKAGE = Path(safemodule.__file__).parent


def writes_of(function, *args, **kwargs):
    """Return the argument paths that a call writes."""
    with record() as log:
        function(*args, **kwargs)
    return [m.argument for m in log]


# -- how arguments are named -----------------------------------------------------------------------


def test_every_kind_of_parameter():
    """Positional-only, ordinary, defaults, `*args`, keyword-only, `**kwargs`."""

    @freeze_inputs
    def forward(a, /, b, c=None, *rest, d, e=None, **named):
        for t in (a, b, c, *rest, d, e, *named.values()):
            t.add_(1)

    x = [torch.zeros(1) for _ in range(9)]
    caller = Caller(x)
    assert writes_of(forward, x[0], x[1], x[2], x[3], x[4], d=x[5], e=x[6], f=x[7], g=x[8]) == [
        "a",
        "b",
        "c",
        "rest[0]",
        "rest[1]",
        "d",
        "e",
        "f",
        "g",
    ]
    assert writes_of(forward, x[0], b=x[1], c=x[2], d=x[3], e=x[4]) == ["a", "b", "c", "d", "e"]
    caller.check()


def test_positional_only_name_in_kwargs():
    """A keyword may have the name of a positional-only parameter."""

    @freeze_inputs
    def forward(a, /, **named):
        named["a"].add_(1)
        return a is named["a"]

    x, y = torch.zeros(1), torch.zeros(1)
    caller = Caller(x, y)
    assert writes_of(forward, x, a=y) == ["a"]
    caller.check()


def test_default_values_are_guarded_by_nobody():
    """A default is the function's own object: writes stay, as in plain Python."""
    default = torch.zeros(1)

    @freeze_inputs
    def forward(x, buffer=default):
        buffer.add_(1)
        return buffer

    assert forward(torch.zeros(1)) is default
    assert default.tolist() == [1]


def test_wrong_arguments_raise_as_ever():
    """The error is Python's own, with the function's name."""

    @freeze_inputs
    def forward(x, y):
        return x

    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required positional argument: 'y'"):
        forward(torch.zeros(1))
    with pytest.raises(TypeError, match=r"forward\(\) got an unexpected keyword argument 'z'"):
        forward(torch.zeros(1), 1, z=1)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        forward(torch.zeros(1), 1, 2)


def test_argument_called_self_args_or_func():
    """No name of the wrapper stands in the way."""

    @freeze_inputs
    def forward(func, args, kwargs, self, plan, call, x):
        x.add_(1)
        return kwargs

    names = dict.fromkeys(("func", "args", "kwargs", "self", "plan", "call"), 1)
    assert forward(**names, x=torch.zeros(1)) == 1


# -- what may be decorated -------------------------------------------------------------------------


def test_bare_and_with_arguments():
    """`@freeze_inputs`, `@freeze_inputs()` and `@freeze_inputs(mode=...)`."""

    def forward(x):
        return x.add_(1)

    for guarded in (
        freeze_inputs(forward), freeze_inputs()(forward), freeze_inputs(mode="copy")(forward),
        freeze_inputs(mutable=(), snapshot=False)(forward),
    ):  # fmt: skip
        x = torch.zeros(1)
        assert guarded(x).tolist() == [1]
        assert x.tolist() == [0]


class Thing:
    """A class with methods of every kind."""

    @freeze_inputs
    def method(self, x):
        """Write x."""
        return x.add_(1)

    @freeze_inputs
    @staticmethod
    def static(x):
        return x.add_(1)

    @staticmethod
    @freeze_inputs
    def static_outside(x):
        return x.add_(1)

    @freeze_inputs
    @classmethod
    def of_class(cls, x):
        assert cls is Thing
        return x.add_(1)

    @classmethod
    @freeze_inputs
    def of_class_outside(cls, x):
        assert cls is Thing
        return x.add_(1)

    @freeze_inputs
    def __call__(self, x):
        return x.add_(1)


@pytest.mark.parametrize(
    "name", ["method", "static", "static_outside", "of_class", "of_class_outside", "__call__"]
)
def test_methods_of_every_kind(name):
    """On the instance and, where that works, on the class."""
    x = torch.zeros(1)
    assert writes_of(getattr(Thing(), name), x) == ["x"]
    if name not in ("method", "__call__"):
        assert writes_of(getattr(Thing, name), x) == ["x"]
    assert x.tolist() == [0]


def test_partials_lambdas_and_callables():
    """Whatever can be called."""

    def forward(scale, x):
        return x.mul_(scale)

    class Callable:
        def __call__(self, x):
            return x.add_(1)

    x = torch.ones(1)
    for function in (functools.partial(forward, 2), lambda x: x.add_(1), Callable(), nn.init.ones_):
        assert freeze_inputs(function)(x) is not x or function is nn.init.ones_
    assert x.tolist() == [1]
    assert writes_of(freeze_inputs(functools.partial(forward, 2)), x) == ["x"]


def test_a_bound_method_of_a_module():
    """`freeze_inputs(net.forward)`."""
    net = nn.ReLU(inplace=True)
    x = torch.tensor([-1.0])
    assert freeze_inputs(net.forward)(x).tolist() == [0]
    assert x.tolist() == [-1]


def test_coroutines():
    """An async function is guarded until it has been awaited."""

    @freeze_inputs
    async def forward(x):
        await asyncio.sleep(0)
        x.add_(1)
        return x

    assert inspect.iscoroutinefunction(forward)
    x = torch.zeros(1)
    with record() as log:
        out = asyncio.run(forward(x))
    assert (out.tolist(), x.tolist()) == ([1], [0])
    assert is_plain(out)
    assert len(log) == 1


def test_two_coroutines_interleave():
    """Each has its own handle and mode."""

    @freeze_inputs
    async def forward(x, k):
        for _ in range(5):
            x.add_(k)
            await asyncio.sleep(0)
        return x

    async def both(x):
        return await asyncio.gather(forward(x, 1), forward(x, 10))

    x = torch.zeros(1)
    a, b = asyncio.run(both(x))
    assert (a.tolist(), b.tolist(), x.tolist()) == ([5], [50], [0])


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (Thing, "not the class Thing"),
        (nn.ReLU, "not the class ReLU"),
        (nn.ReLU(), "not a module"),
        (3, "not int"),
        (None, None),
    ],
)
def test_what_cannot_be_decorated(what, text):
    """The error says what to do instead."""
    if text is None:
        assert callable(freeze_inputs(None))  # `@freeze_inputs(None)` is `@freeze_inputs()`
        return
    with pytest.raises(TypeError, match=text):
        freeze_inputs(what)


def test_generators_are_refused():
    """What they yield would have to be plain, while they go on writing."""

    def items(x):
        yield x

    with pytest.raises(TypeError, match=r"cannot guard the generator .*items"):
        freeze_inputs(items)

    async def async_items(x):
        yield x

    with pytest.raises(TypeError, match="cannot guard the generator"):
        freeze_inputs(async_items)


@pytest.mark.parametrize("bad", ["copied", "", "Strict", "none"])
def test_a_bad_mode_is_refused_with_the_legal_ones(bad):
    """At decoration."""
    with pytest.raises(ValueError, match="'copy', 'warn', 'strict', 'off'"):
        freeze_inputs(mode=bad)


def test_unknown_keyword_is_refused():
    """At decoration."""
    with pytest.raises(TypeError, match="unexpected keyword"):
        freeze_inputs(modes="copy")


def test_a_builtin_that_hides_its_signature():
    """A function of C++ is guarded too; its arguments are known by position and keyword."""
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(torch.clamp_)
    x = torch.tensor([-1.0, 1.0])
    with record() as log:
        out = freeze_inputs(torch.clamp_)(x, min=0)
        freeze_inputs(torch.clamp_)(input=x, min=0)
    assert (out.tolist(), x.tolist()) == ([0, 1], [-1, 1])
    assert [m.argument for m in log] == ["args[0]", "input"]


# -- what is preserved -----------------------------------------------------------------------------


def original(x: Tensor, *, k: int = 1) -> Tensor:
    """Say what it does."""
    return x.add_(k)


def test_metadata():
    """Name, docs, module, types, signature, `__wrapped__`."""
    guarded = freeze_inputs(original)
    assert guarded.__name__ == "original"
    assert guarded.__qualname__ == "original"
    assert guarded.__module__ == __name__
    assert guarded.__doc__ == "Say what it does."
    assert guarded.__wrapped__ is original
    assert inspect.signature(guarded) == inspect.signature(original)
    assert get_type_hints(guarded) == get_type_hints(original)
    assert inspect.isfunction(guarded)


def test_original_is_unchanged():
    """Only the guarded name is guarded."""
    x = torch.zeros(1)
    freeze_inputs(original)
    original(x)
    assert x.tolist() == [1]


def test_attributes_of_the_function():
    """They are copied, as functools.wraps does."""

    def forward(x):
        return x

    forward.tag = 1
    assert freeze_inputs(forward).tag == 1


# -- modes -----------------------------------------------------------------------------------------


def adds(x):
    """Write x."""
    return x.add_(1)


def outcome(function):
    """Say what a call does: 'copied', 'refused' or 'off'."""
    x = torch.zeros(1)
    try:
        function(x)
    except InputMutationError:
        return "refused"
    return "copied" if x.tolist() == [0] else "off"


@pytest.mark.parametrize(
    ("declared", "process", "block", "expected"),
    [
        (None, None, None, "copied"),
        ("strict", None, None, "refused"),
        (None, "strict", None, "refused"),
        (None, None, "strict", "refused"),
        ("off", "strict", None, "off"),
        ("strict", "off", None, "refused"),
        ("strict", "strict", "copy", "copied"),
        ("strict", "copy", "off", "off"),
        ("off", "off", "strict", "refused"),
        (None, "off", None, "off"),
        (None, "off", "copy", "copied"),
    ],
)
def test_precedence(declared, process, block, expected):
    """Innermost block over argument over `set_mode`."""
    function = freeze_inputs(mode=declared)(adds)
    set_mode(process)
    try:
        if block is None:
            assert outcome(function) == expected
        else:
            with mode("off"), mode(block):
                assert outcome(function) == expected
    finally:
        set_mode(None)


def test_environment(monkeypatch):
    """The weakest of all."""
    from safemodule import _modes

    monkeypatch.setattr(_modes, "_environment", "strict")
    set_mode(None)
    assert outcome(freeze_inputs(adds)) == "refused"
    assert outcome(freeze_inputs(mode="copy")(adds)) == "copied"
    monkeypatch.undo()
    set_mode(None)


def test_mode_inside_forward():
    """A block inside forward holds for the writes in it."""

    @freeze_inputs
    def forward(x):
        with mode("strict"), pytest.raises(InputMutationError):
            x.add_(1)
        x.mul_(3)
        return x

    assert forward(torch.ones(1)).tolist() == [3]


def test_off_inside_forward_still_protects():
    """The handle is there already: the write goes to the copy, without a record."""

    @freeze_inputs
    def forward(x):
        with mode("off"):
            x.add_(1)
        return x

    x = torch.zeros(1)
    with record() as log:
        assert forward(x).tolist() == [1]
    assert x.tolist() == [0]
    assert list(log) == []


def test_mode_of_an_inner_call_is_its_own():
    """A strict inner function refuses, inside a lenient outer one, and the other way round."""
    strict = freeze_inputs(mode="strict")(adds)
    lenient = freeze_inputs(mode="copy")(adds)

    @freeze_inputs(mode="copy")
    def outer(x):
        x.add_(1)
        with pytest.raises(InputMutationError):
            strict(x)
        return x

    assert outer(torch.zeros(1)).tolist() == [1]

    @freeze_inputs(mode="strict")
    def strict_outer(x):
        return lenient(x) + x

    assert strict_outer(torch.zeros(1)).tolist() == [1]


def test_off_passes_the_very_objects():
    """No wrapping at all."""
    seen = []
    x, batch = torch.zeros(1), {"x": 1}
    freeze_inputs(mode="off")(lambda *args: seen.extend(args))(x, batch)
    assert seen[0] is x
    assert seen[1] is batch


# -- recursion, reentrancy, exceptions --------------------------------------------------------------


def test_recursion():
    """A guarded function that calls itself."""

    @freeze_inputs
    def forward(x, depth):
        if not depth:
            return x
        x.add_(1)
        return forward(x, depth - 1)

    x = torch.zeros(1)
    with record() as log:
        assert forward(x, 5).tolist() == [5]
    assert x.tolist() == [0]
    assert log[0].count == 5


def test_reentrancy():
    """Called from a hook in the middle of itself, with the same tensor."""
    seen = []

    @freeze_inputs
    def forward(x, callback=None):
        x.add_(1)
        if callback:
            callback()
        x.mul_(10)
        return x

    x = torch.zeros(1)
    out = forward(x, lambda: seen.append(forward(x).tolist()))
    assert (out.tolist(), seen, x.tolist()) == ([10], [[10]], [0])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_exceptions(error):
    """They pass through unchanged; the next call is fine."""

    @freeze_inputs
    def forward(x, fail):
        v = x[:1]
        x.add_(1)
        if fail:
            raise error("mine")
        return v

    x = torch.zeros(2)
    caller = Caller(x)
    for _ in range(3):
        with pytest.raises(error, match="mine") as caught:
            forward(x, fail=True)
        assert caught.value.__context__ is None
        assert forward(x, fail=False).tolist() == [1]
    caller.check()


def test_traceback_is_short():
    """At most two frames of ours between caller and function."""

    @freeze_inputs
    def forward(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        forward(torch.zeros(1))
    ours = [t for t in caught.traceback if PACKAGE in t.path.parents]
    assert len(ours) <= 2


# -- mutable ---------------------------------------------------------------------------------------


def test_mutable_by_name():
    """A declared argument arrives as it is; the others stay guarded."""

    @freeze_inputs(mutable=("cache",))
    def forward(x, cache):
        assert cache is mine
        cache.add_(1)
        x.add_(1)
        return cache

    mine, x = torch.zeros(1), torch.zeros(1)
    with record() as log:
        assert forward(x, mine) is mine
    assert (mine.tolist(), x.tolist()) == ([1], [0])
    assert [m.argument for m in log] == ["x"]


def test_mutable_by_annotation():
    """`Mutable[...]`, as a string too."""

    @freeze_inputs(mode="strict")
    def forward(x, cache: Mutable[Tensor], *, state: Mutable[dict[str, Tensor]]):
        cache.add_(1)
        state["k"] = x

    cache, state = torch.zeros(1), {}
    forward(torch.zeros(1), cache, state=state)
    assert cache.tolist() == [1]
    assert list(state) == ["k"]


def test_mutable_variadic():
    """`*buffers` and `**named` can be declared as a whole."""

    @freeze_inputs(mutable=("buffers",))
    def forward(x, *buffers, **named):
        for t in (x, *buffers, *named.values()):
            t.add_(1)

    x, a, b = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    forward(x, a, k=b)
    assert [t.tolist() for t in (x, a, b)] == [[0], [1], [0]]

    @freeze_inputs
    def forward(x, **named: Mutable[Tensor]):
        for t in (x, *named.values()):
            t.add_(1)

    forward(x, k=b)
    assert [t.tolist() for t in (x, b)] == [[0], [1]]


def test_mutable_name_that_is_no_parameter():
    """Refused at decoration, with the list of parameters."""
    with pytest.raises(ValueError, match="mutable='cach' is no parameter") as caught:

        @freeze_inputs(mutable=("cach",))
        def forward(x, cache, *rest, k):
            pass

    assert "x, cache, rest, k" in str(caught.value)


def test_mutable_that_is_a_string():
    """A likely slip."""
    with pytest.raises(TypeError, match=r'mutable=\("cache",\)'):
        freeze_inputs(mutable="cache")


def test_mutable_that_holds_no_names():
    """Likewise."""
    with pytest.raises(TypeError, match="not int"):
        freeze_inputs(mutable=(0,))


def test_the_same_tensor_guarded_and_mutable():
    """The caller asked for both: the mutable name writes it, the guarded handle sees that."""

    @freeze_inputs(mutable=("cache",))
    def forward(x, cache):
        cache.add_(1)
        return x * 1

    x = torch.zeros(1)
    forward(x, x)
    assert x.tolist() == [1]


def test_coroutine_in_mode_off():
    """It is the function itself, at the cost of one check."""

    @freeze_inputs(mode="off")
    async def forward(x):
        return x.add_(1)

    x = torch.zeros(1)
    assert asyncio.run(forward(x)) is x
    assert x.tolist() == [1]
