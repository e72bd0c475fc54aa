"""A recurrent state is reset in place after it was used.

State returned by one iteration is fed to the next while the graph is retained and the optimizer
steps in between.

Wanted: point at the reset line; suggest torch.where

Reported in: NVlabs/FUNIT/issues/23 (reset by slice assignment: leggedrobotics/rsl_rl/pull/35)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, 3)

    def forward(self, xs, h, done):
        out = 0.0
        for x in xs:
            h = self.cell(x, h)
            out = out + h.pow(2).sum()
            h[done] = 0.0  # episode reset
        return out


def inputs():
    """Return the caller's arguments."""
    return torch.randn(3, 2, 2), torch.zeros(2, 3), torch.tensor([True, False])


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
