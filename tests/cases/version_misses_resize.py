"""`resize_` changes a shape without moving the version counter.

resize_ changed shape without moving _version, so mutation tracking built on the counter missed
it; maintainers confirmed a missing bump in hand-written kernels.

Wanted: reported

Reported in: pytorch/pytorch/issues/93776
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        x.resize_(4, 1)
        return x.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(4),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
