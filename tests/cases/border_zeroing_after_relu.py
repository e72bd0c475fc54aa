"""The borders of an attention map are zeroed in place.

Borders of an attention map that came out of a ReLU are zeroed by slice assignment; backward of
ReLU needs the map.

Wanted: line of the slice assignment rather than only the forward op

Reported in: AggMan96/RK-Net/issues/9
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, att):
        att[:, :, :, 0] = 0
        att[:, :, 0, :] = 0
        return att.sum()


def inputs():
    """Return the caller's arguments."""
    w = torch.ones(1, requires_grad=True)
    return (torch.relu(torch.randn(1, 1, 4, 4) * w),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
