"""Dropout in evaluation returns its input, which is then written.

F.dropout(training=False) returns its input object, so `y += y` writes the caller's tensor in
eager while the compiled version leaves it alone: behaviour depends on mode and on compilation.

Wanted: same behaviour in both; write on x reported

Reported in: pytorch/pytorch/issues/195422
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        y = F.dropout(x, 0.5, training=False)  # y is x
        y += y
        return y


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(2, 2),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
