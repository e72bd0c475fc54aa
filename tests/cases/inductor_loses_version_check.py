"""The next batch is copied into an input that backward needs.

With the inductor backend a saved view of an input is rebuilt and no longer shares the version
counter: refilling an input buffer between forward and backward raises in eager but gives wrong
gradients when compiled.

Wanted: same error in both modes

Reported in: pytorch/pytorch/issues/197887
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        out = (x @ self.w).sum()
        x.copy_(torch.zeros_like(x))  # next batch into same buffer
        return out


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
