"""Drawing weights rescales them.

Drawing model weights with a grid helper (normalize=True) clamped/rescaled the tensor it was
given, so plotting changed the weights and training behaved oddly.

Wanted: argument untouched unless an explicit inplace flag is given

Reported in: pytorch/vision/issues/217
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, w):
        lo, hi = float(w.min()), float(w.max())
        w.clamp_(lo, hi).sub_(lo).div_(hi - lo + 1e-5)
        return w.flatten(1)


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(4, 3, 2, 2),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
