"""`guard`: a context manager with one method."""

from __future__ import annotations

from typing import assert_type

from torch import nn

import safemodule
from safemodule import guard

model = nn.Linear(2, 2)

assert_type(guard(model), safemodule.Guard)
assert_type(guard(), safemodule.Guard)
assert_type(guard(model, mode="strict", mutable=("cache",), submodules=False), safemodule.Guard)

with guard(model) as protection:
    assert_type(protection, safemodule.Guard)
    assert_type(protection.active, bool)
    assert_type(protection.remove(), None)

guard(model, mode="stric")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard(model, "strict")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
guard(model, mutable=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard(model.forward)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard(nn.Linear)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def swallows_nothing() -> int:
    """Need no `return` after the block: leaving it passes every error on."""
    with guard(model):
        return 1
