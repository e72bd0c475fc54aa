"""`freeze_inputs`: what is decorated keeps its type."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, assert_type, overload

import torch
from torch import Tensor, nn

from safemodule import Mutable, freeze_inputs

T = TypeVar("T")

x = torch.ones(3)


@freeze_inputs
def bare(x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None) -> tuple[Tensor, int]:
    """Return something."""
    return x, 1


assert_type(bare(x), tuple[Tensor, int])
assert_type(bare(x, 2.0, mask=x), tuple[Tensor, int])
bare("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare(x, mask=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare(x, masks=x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bare()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
as_callable: Callable[[Tensor], tuple[Tensor, int]] = bare


@freeze_inputs()
def called(x: Tensor) -> Tensor:
    """Return something."""
    return x


@freeze_inputs(mode="strict", mutable=["cache"], snapshot=True)
def with_arguments(x: Tensor, cache: Tensor) -> Tensor:
    """Return something."""
    return x


assert_type(called(x), Tensor)
assert_type(with_arguments(x, cache=x), Tensor)
with_arguments(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
with_arguments(x, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

freeze_inputs(mode="stric")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
freeze_inputs(mutable=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
freeze_inputs(modes="copy")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
freeze_inputs(x)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


@freeze_inputs
async def coroutine(x: Tensor) -> Tensor:
    """Return something."""
    return x


as_coroutine: Callable[[Tensor], Coroutine[Any, Any, Tensor]] = coroutine


async def awaiting() -> None:
    """Await it."""
    assert_type(await coroutine(x), Tensor)


class Net(nn.Module):
    """Methods."""

    size: int

    @freeze_inputs
    def forward(self, x: Tensor, states: list[Tensor]) -> Tensor:
        assert_type(self.size, int)
        assert_type(states, list[Tensor])
        return x

    @freeze_inputs(mode="warn")
    def step(self, x: Tensor, cache: Mutable[Tensor]) -> Tensor:
        assert_type(cache, Tensor)
        return cache.add_(x)

    @staticmethod
    @freeze_inputs
    def static(x: Tensor) -> Tensor:
        return x

    @freeze_inputs
    @staticmethod
    def outside_of_static(x: Tensor) -> Tensor:
        return x

    @classmethod
    @freeze_inputs
    def of_class(cls, x: Tensor) -> Tensor:
        return x

    @freeze_inputs(mode="copy")
    @classmethod
    def outside_of_class(cls, x: Tensor) -> Tensor:
        return x


net = Net()
assert_type(net.forward(x, [x]), Tensor)
assert_type(net.step(x, cache=x), Tensor)
assert_type(Net.static(x), Tensor)
assert_type(net.static(x), Tensor)
assert_type(Net.outside_of_static(x), Tensor)
assert_type(net.outside_of_static(x), Tensor)
assert_type(net.of_class(x), Tensor)
assert_type(net.outside_of_class(x), Tensor)
assert_type(Net.outside_of_class(x), Tensor)
net.forward(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
net.forward(x, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
net.step(x, x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
net.outside_of_static(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@freeze_inputs
def generic(item: T, x: Tensor) -> list[T]:
    """Return something."""
    return [item]


assert_type(generic(1, x), list[int])
assert_type(generic("a", x), list[str])


@overload
def overloaded(x: Tensor) -> Tensor: ...
@overload
def overloaded(x: list[Tensor]) -> list[Tensor]: ...
@freeze_inputs
def overloaded(x: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """Return something."""
    return x


assert_type(overloaded(x), Tensor)
assert_type(overloaded([x]), list[Tensor])

# As a function too, on what is no definition.
assert_type(freeze_inputs(overloaded)([x]), list[Tensor])
assert_type(freeze_inputs(mode="off")(overloaded)(x), Tensor)
assert_type(freeze_inputs(net.step)(x, x), Tensor)
