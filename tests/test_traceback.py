"""Tracebacks without our frames."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import safemodule
from safemodule import InputMutationError
from safemodule._traceback import chain, clean

PACKAGE = Path(safemodule.__file__).parent


def function(name, body, filename, **scope):
    """Return a function whose code seems to stand in a file."""
    exec(compile(f"def {name}():\n    {body}", filename, "exec"), scope)
    return scope[name]


def ours(name, body, **scope):
    """Return a function of this package."""
    return function(name, body, str(PACKAGE / "_some.py"), **scope)


def names(error):
    """Return the functions in a traceback, the outermost first, without the test itself."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)[1:]]


def raised(call):
    """Return what a call raises."""
    with pytest.raises(BaseException) as info:
        call()
    return info.value


def between(error):
    """Return a call: the user's, ours, the user's, and ours again, where an error is raised."""
    innermost = ours("innermost", "raise error", error=error)
    inner = function("inner", "innermost()", "/user.py", innermost=innermost)
    middle = ours("middle", "inner()", inner=inner)
    return function("outer", "middle()", "/user.py", middle=middle)


@pytest.mark.parametrize("kind", [RuntimeError, IndexError, InputMutationError])
def test_errors_of_torch_and_of_the_user(kind):
    """They pass through this package, and none of its frames is left."""
    error = raised(between(kind("x")))
    assert names(error) == ["outer", "middle", "inner", "innermost"]
    clean(error)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-2:] == [
        "outer",
        "inner",
    ]


def test_a_fault_of_ours_stays_visible():
    """What torch never raises, and comes from this package, is shown as it is."""
    error = raised(between(KeyError("x")))
    before = names(error)
    clean(error)
    assert names(error) == before == ["outer", "middle", "inner", "innermost"]


def test_where_the_program_starts():
    """What is outside of the function that started it goes too, whosever it is."""
    outer = between(ValueError("x"))
    start = ours("start", "outer()", outer=outer)
    error = raised(function("launcher", "start()", "/launcher.py", start=start))
    clean(error, start=(start.__code__,))
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["outer", "inner"]
    start = ours("start", "raise SyntaxError")
    error = raised(start)
    clean(error, start=(start.__code__,))
    assert error.__traceback__ is None


def test_all_that_belongs_to_an_error():
    """Causes, contexts and the members of a group, each once."""
    member, cause, context = ValueError("member"), ValueError("cause"), ValueError("context")
    error = ExceptionGroup("group", [member])
    error.__cause__, error.__context__, member.__context__ = cause, context, error
    assert {str(each) for each in chain(error)} == {str(error), "member", "cause", "context"}
    assert len(list(chain(error))) == 4
    assert list(chain(None)) == []
