"""A local tensor is written after autograd has saved it.

User asks for a debug switch that makes a tensor constant so the offending in-place op raises
where it happens, and would even like constants by default. Maintainers: useful in general;
anomaly mode covers part; numpy's WRITEABLE flag named as a model. Still open.

Wanted: exception at the `y += 1` line, not at backward

Reported in: pytorch/pytorch/issues/30458
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        y = torch.sigmoid(x)
        y += 1
        return y.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(3, requires_grad=True),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
