"""`freeze`: the type of the tensor stays."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

from safemodule import freeze

x = torch.ones(3)
weight = nn.Parameter(x)

assert_type(freeze(x), Tensor)
assert_type(freeze(x, name="x"), Tensor)
assert_type(freeze(weight), nn.Parameter)
assert_type(freeze(x)[0], Tensor)

freeze([1.0])  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
freeze(None)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
freeze(x, "x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
freeze(x, name=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
