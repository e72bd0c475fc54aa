"""`SafeModule`: as `nn.Module` to a type checker."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch import Tensor, nn

from safemodule import Mutable, SafeModule


class Plain(nn.Module):
    """The yardstick: what checkers make of a module of torch."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        assert_type(self.linear(x), Any)
        return x


class Net(SafeModule):
    """A module with a typed `forward`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("scale", torch.ones(size))
        self.names = ["a"]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor], *, train: bool = False) -> Tensor:
        assert_type(x, Tensor)
        assert_type(state, tuple[Tensor, Tensor])
        assert_type(self.linear, nn.Linear)
        assert_type(self.linear(x), Any)
        return x


plain = Plain(3)
net = Net(3)
x = torch.ones(3)

# `__call__` is nn.Module's, which promises nothing.
assert_type(plain(x), Any)
assert_type(net(x, (x, x)), Any)
assert_type(net(x, nothing=1), Any)

# A `forward` of one's own keeps its signature.
assert_type(net.forward(x, (x, x), train=True), Tensor)
net.forward(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
net.forward(x, [x])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Net("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Net()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

# What nn.Module has is there, with its types.
assert_type(net.linear, nn.Linear)
assert_type(net.names, list[str])
assert_type(net.eval(), Net)
assert_type(net.to("cpu"), Net)
as_module: nn.Module = net
nn.Sequential(net, net)


class Configured(SafeModule, mode="strict", mutable=("cache",), snapshot=True):
    """Class keywords are checked."""

    def forward(self, cache: Tensor) -> Tensor:
        return cache


class Inherits(Configured, mode=None):
    """None goes back to what the process says."""


class Misspelt(SafeModule, mode="stric"):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    """A mode that does not exist."""


class Numbers(SafeModule, mutable=(1,)):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    """Names of parameters are strings."""


class Cooperative:
    """A class with a keyword of its own."""

    def __init_subclass__(cls, *, tag: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)


class Tagged(SafeModule, Cooperative, mode="warn", tag="t"):
    """Keywords of other bases pass."""


class SafePlain(SafeModule, Plain):
    """As a mixin it leaves the signatures of the class that it protects."""


assert_type(SafePlain(3).forward(x), Tensor)
SafePlain("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Decoder(SafeModule):
    """`Mutable[T]` is `T`."""

    def forward(self, x: Tensor, cache: Mutable[dict[str, Tensor]]) -> Tensor:
        assert_type(cache, dict[str, Tensor])
        return cache["k"] + x


assert_type(Decoder().forward(x, {"k": x}), Tensor)
Decoder().forward(x, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
