"""A module returns the same buffer at each call.

A compiled-engine module returned the same preallocated output each call, so results kept from
call 1 change on call 2: an output, not an input, is overwritten.

Wanted: fresh output per call, or a warning that an earlier output was overwritten

Reported in: ROCm/torch_migraphx/pull/247
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.register_buffer("out", torch.zeros(3))

    def forward(self, x):
        self.out.copy_(x * 2)
        return self.out


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(3),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
