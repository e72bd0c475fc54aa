"""A full backward hook meets an in-place activation on an inner tensor.

A full backward hook wraps module inputs/outputs in a custom Function; the in-place activation
then writes a view created there and forward fails. Attribution tools dropped support for in-
place modules.

Wanted: guard must not add such views itself (a wrapper Function would create this error)

Reported in: pytorch/pytorch/issues/61519
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
        self.net[1].register_full_backward_hook(lambda m, gi, go: None)

    def forward(self, x):
        return self.net(x).sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 3),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
