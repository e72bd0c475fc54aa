"""A write to an advanced-indexed selection writes a temporary.

Counter-example: clamp_ on an advanced-indexed selection works on a copy, so nothing is written
although the code looks in place. A guard must not report it.

Wanted: no report

Reported in: ultralytics/yolov3/pull/961
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, boxes):
        boxes[:, [0, 2]].clamp_(0, 10)  # temporary copy
        return boxes.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.tensor([[-1.0, -1.0, 20.0, 20.0]]),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
