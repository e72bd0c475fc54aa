"""A residual block activates its own input in place.

A residual block starts with an in-place activation on its input, so the skip connection adds
the activated input; switching inplace off changes results of a pretrained net. No error is
raised.

Wanted: flag that the sub-module's argument is written and read again later

Reported in: pytorch/pytorch/issues/44194 (also issues/5687)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.c = nn.Linear(3, 3)

    def forward(self, x):
        out = self.c(self.relu(x))
        return out + x  # x is already relu(x)


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
