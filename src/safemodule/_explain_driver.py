"""Decorating functions, generators and coroutines with a block.

A generator runs inside the block only while it runs itself: what its consumer does between two
items is not the block's business, and blocks end in the order in which they began.
"""

from __future__ import annotations

import functools
import inspect
import types
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

__all__ = ["decorate"]

Block = AbstractContextManager[Any]


def decorate(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    """Return a function that runs `function` inside a block.

    Args:
        function: A function, generator function, coroutine function or asynchronous generator.
        block: Entered for each call, and again for each step of a generator.
    """
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            steps = _async_steps(function(*args, **kwargs), block)
            try:
                value = await steps.asend(None)
                while True:
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await steps.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001  it is thrown into the generator
                        value = await steps.athrow(error)
                    else:
                        value = await steps.asend(sent)
            except StopAsyncIteration:
                return

        return asynchronous

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _await(function(*args, **kwargs), block)

        return coroutine

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _steps(function(*args, **kwargs), block))

        return generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return plain


def _steps(inner: Any, block: Block) -> Generator[Any, Any, Any]:
    """Run a generator or a coroutine, each of its steps inside a block."""
    try:
        with block:
            value = inner.send(None)
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                with block:
                    inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  it is thrown into the generator
                with block:
                    value = inner.throw(error)
            else:
                with block:
                    value = inner.send(sent)
    except StopIteration as end:
        return end.value


# The same for whatever `await` needs.
_await = types.coroutine(_steps)


class _async_steps:  # noqa: N801  a function in all but name
    """The steps of an asynchronous generator, each inside a block."""

    def __init__(self, inner: AsyncGenerator[Any, Any], block: Block) -> None:
        self._inner = inner
        self._block = block

    async def asend(self, value: Any) -> Any:
        return await _await(self._inner.asend(value), self._block)

    async def athrow(self, error: BaseException) -> Any:
        return await _await(self._inner.athrow(error), self._block)

    async def aclose(self) -> Any:
        return await _await(self._inner.aclose(), self._block)
