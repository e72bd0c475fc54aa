"""Stored annotations are converted in place each time they are read.

A reference-script conversion turned xywh into xyxy by adding a slice to another slice of the
stored annotation tensor; because the dataset lives in memory the conversion is applied again
each time it is read.

Wanted: stored boxes unchanged

Reported in: pytorch/vision/issues/5221 (fix pull/5289)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, target):
        b = target["boxes"]
        b[:, 2:] += b[:, :2]
        return b.sum()


def inputs():
    """Return the caller's arguments."""
    return ({"boxes": torch.tensor([[1.0, 1.0, 2.0, 2.0]])},)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]['boxes']"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
