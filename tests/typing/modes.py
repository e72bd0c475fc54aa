"""`mode`, `set_mode` and `get_mode`: four words, and no other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, assert_type

from safemodule import get_mode, mode, set_mode

assert_type(get_mode(), Literal["copy", "warn", "strict", "off"])

set_mode("copy")
set_mode("warn")
set_mode("strict")
set_mode("off")
set_mode(None)
set_mode(get_mode())
set_mode("stric")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
set_mode(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
set_mode()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

with mode("strict") as nothing:
    assert_type(nothing, None)

mode("stric")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
mode(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@mode("off")
def evaluate(x: int, *, y: str = "") -> list[int]:
    """Return something."""
    return [x]


@mode("copy")
async def coroutine(x: int) -> str:
    """Return something."""
    return str(x)


assert_type(evaluate(1, y="a"), list[int])
as_coroutine: Callable[[int], Coroutine[Any, Any, str]] = coroutine


async def awaiting() -> None:
    """Await it."""
    assert_type(await coroutine(1), str)


evaluate("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def swallows_nothing() -> int:
    """Need no `return` after the block: leaving it passes every error on."""
    with mode("warn"):
        return 1
