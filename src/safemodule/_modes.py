"""What happens when a module writes an input: the mode, and who decides it.

Precedence: innermost ``with mode(...)`` > argument of the decorator or class > `set_mode` >
environment variable ``SAFEMODULE_MODE`` > ``"copy"``.
"""

from __future__ import annotations

import functools
import inspect
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["MODES", "Mode", "check_mode", "effective", "get_mode", "mode", "set_mode"]

Mode = Literal["copy", "warn", "strict", "off"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def check_mode(value: object, what: str = "mode") -> Mode:
    """Return ``value`` if it is a legal mode.

    Args:
        value: The mode to check.
        what: The name of the setting, for the error text.

    Raises:
        TypeError: If ``value`` is no string.
        ValueError: If it is a string that names no mode.
    """
    legal = ", ".join(repr(name) for name in MODES)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be one of {legal}, got {value!r} ({type(value).__name__})")
    if value not in MODES:
        raise ValueError(f"{what} must be one of {legal}, got {value!r}")
    return cast("Mode", str(value))


def _from_environment() -> Mode:
    # Read once, at import: a misspelt value stops the program before hours of training, not after.
    value = os.environ.get("SAFEMODULE_MODE", "")
    return check_mode(value, "environment variable SAFEMODULE_MODE") if value else "copy"


_environment: Mode = _from_environment()
# What holds where nobody said anything nearer: set_mode(), else the environment.
process: Mode = _environment
# The `with mode(...)` blocks around the running code, outermost first.
_blocks: ContextVar[tuple[Mode, ...]] = ContextVar("safemodule_mode", default=())
get_blocks = _blocks.get


def effective(declared: Mode | None) -> Mode:
    """Return the mode in force for a call whose decorator or class declares ``declared``.

    This runs at every guarded call.
    """
    blocks = get_blocks()
    if blocks:
        return blocks[-1]
    return process if declared is None else declared


def get_mode() -> Mode:
    """Return the mode in force here, for what declares none of its own.

    Example:
        >>> from safemodule import get_mode, mode
        >>> with mode("strict"):
        ...     get_mode()
        'strict'
    """
    return effective(None)


def set_mode(value: Mode | None) -> None:
    """Set the mode of the whole process, all threads included.

    A mode given to a decorator or a class, and ``with mode(...)``, are nearer and win.

    Args:
        value: ``"copy"``, ``"warn"``, ``"strict"`` or ``"off"``; None goes back to the environment
            variable ``SAFEMODULE_MODE``, or to ``"copy"`` where that is not set.

    Raises:
        ValueError: If ``value`` names no mode.
        TypeError: If ``value`` is neither a string nor None.

    Example:
        >>> from safemodule import get_mode, set_mode
        >>> before = get_mode()
        >>> set_mode("warn")
        >>> get_mode()
        'warn'
        >>> set_mode(None)
        >>> get_mode() == before
        True
    """
    global process  # noqa: PLW0603 -- one setting of the process is what this is
    process = _environment if value is None else check_mode(value)


class mode:  # noqa: N801 -- used as a function
    """Choose what happens when a module writes an input, for a block of code or a function.

    The innermost block wins over everything else, so a user can soften a library's strict class.
    It holds for the running thread or task, and for the tasks started in it. One object may be
    entered many times, also again while it is active, and from many threads.

    Args:
        value: One of

            - ``"copy"``: the write goes to a copy, is recorded, and logged once per line;
            - ``"warn"``: the same, and an ``InputMutationWarning`` at the line;
            - ``"strict"``: raise ``InputMutationError`` before anything has changed;
            - ``"off"``: no protection, at the cost of one check per call.

    Raises:
        ValueError: If ``value`` names no mode.
        TypeError: If ``value`` is no string, or what is decorated is a class or a generator.

    Example:
        >>> from safemodule import get_mode, mode
        >>> with mode("strict"), mode("warn"):
        ...     get_mode()
        'warn'
        >>> @mode("off")
        ... def evaluate():
        ...     return get_mode()
        >>> evaluate()
        'off'
    """

    __slots__ = ("_value",)

    def __init__(self, value: Mode) -> None:
        self._value: Mode = check_mode(value)

    def __repr__(self) -> str:
        return f"mode({self._value!r})"

    def __enter__(self) -> None:
        _blocks.set((*get_blocks(), self._value))

    def __exit__(self, *exc_info: object) -> None:
        # Take the own value out instead of restoring the state of the entry: blocks held open by
        # generators need not end in order, and may end in another context than they began in.
        blocks = get_blocks()
        for i in reversed(range(len(blocks))):
            if blocks[i] == self._value:
                _blocks.set(blocks[:i] + blocks[i + 1 :])
                return

    def __call__(self, func: Callable[_P, _R]) -> Callable[_P, _R]:
        if isinstance(func, type):
            raise TypeError(
                f"mode(...) cannot decorate the class {func.__qualname__}: decorate its forward"
            )
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            # The body runs in steps, each in the context of whoever asks for the next item.
            raise TypeError(
                f"mode(...) cannot decorate the generator {func.__qualname__}: use it as a block"
            )
        if inspect.iscoroutinefunction(func):
            coroutine = cast("Callable[_P, Awaitable[Any]]", func)

            @functools.wraps(func)
            async def awaiting(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with self:
                    return await coroutine(*args, **kwargs)

            return cast("Callable[_P, _R]", awaiting)

        @functools.wraps(func)
        def calling(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return func(*args, **kwargs)

        return calling


for _public in (mode, set_mode, get_mode):
    _public.__module__ = "safemodule"
