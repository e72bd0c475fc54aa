"""A custom op writes an argument that it does not declare.

Custom ops must declare the mutated arguments exactly, otherwise behaviour is undefined; a
pessimistic 'unknown' was added. Undeclared writes are invisible to schema-based detection.

Wanted: tool finds the wrong declaration

Reported in: pytorch/pytorch/issues/129372 (pull/123129; issues/153389)
"""

from __future__ import annotations

import torch
from torch import nn


@torch.library.custom_op("labq::sneaky", mutates_args=())
def sneaky(x: torch.Tensor) -> torch.Tensor:
    """Return what the report computes."""
    x.sin_()
    return x * 3


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        return sneaky(x)


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
