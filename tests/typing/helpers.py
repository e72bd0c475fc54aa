"""`safemodule.testing`, and the fixture of the pytest plugin."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch import nn

from safemodule import MutationLog
from safemodule.testing import assert_inputs_unchanged

x = torch.ones(3)

assert_type(assert_inputs_unchanged(nn.ReLU(), x), Any)
assert_inputs_unchanged(torch.add, x, x, alpha=2)
assert_inputs_unchanged(1, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def uses_the_fixture(safemodule_log: MutationLog) -> None:
    """Ask for the log, as a test does."""
    assert_type(safemodule_log, MutationLog)
