"""`x.data = ...` gives the caller's tensor another storage.

Assigning x.data or calling set_ gives the caller's tensor another storage; earlier views keep
the old one, compiled code disagreed with eager.

Wanted: reported although the old storage was never written

Reported in: pytorch/pytorch/issues/94773
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        v = x[:1]
        x.data = torch.full_like(x, 7.0)
        return x.sum() + v.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
