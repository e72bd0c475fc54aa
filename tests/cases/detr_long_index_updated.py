"""An index tensor is shifted in place after it was used.

Training stops with a LongTensor reported as modified: an index tensor used by gather/index was
changed after use. The message gives dtype and shape only, and integer tensors surprise users.

Wanted: location of the write to the index

Reported in: JacobYuan7/RLIPv2/issues/19
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.p = nn.Linear(4, 4)

    def forward(self, x, idx):
        y = self.p(x).gather(1, idx).sum()
        idx += 1  # shift for the next head
        return y


def inputs():
    """Return the caller's arguments."""
    return torch.randn(2, 4), torch.zeros(2, 2, dtype=torch.long)


# What a plain nn.Module does to the caller:
WRITTEN = ["[1]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
