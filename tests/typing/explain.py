"""`explain`: a context manager, and a decorator that changes no type."""

from __future__ import annotations

from collections.abc import Generator
from typing import assert_type

from safemodule import explain


@explain
def bare(x: int) -> str:
    """Return something."""
    return str(x)


@explain(check_values=True)
def with_arguments(x: int, *, y: int = 0) -> str:
    """Return something."""
    return str(x)


@explain()
def generator(x: int) -> Generator[int, None, str]:
    """Return something."""
    yield x
    return str(x)


assert_type(bare(1), str)
assert_type(with_arguments(1, y=2), str)
assert_type(generator(1), Generator[int, None, str])
bare("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
with_arguments(1, z=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
explain(check_values="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
explain(True)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def swallows_nothing() -> int:
    """Need no `return` after the block: leaving it passes every error on."""
    with explain():
        return 1
