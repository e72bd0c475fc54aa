"""A transform stores rescaled boxes in the caller's targets.

The RCNN transform rescales boxes and stores them back under the same key of the caller's target
dict, so boxes shrink/grow at each epoch when targets are cached. Again the tensor itself is not
written.

Wanted: target dicts unchanged after forward; a shallow copy of every dict was the fix

Reported in: pytorch/vision/issues/2219 (fix pull/2227)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, img, targets):
        s = 0.5
        for t in targets:
            t["boxes"] = t["boxes"] * s
        return F.interpolate(img, scale_factor=s).mean() + targets[0]["boxes"].sum()


def inputs():
    """Return the caller's arguments."""
    return torch.rand(1, 3, 8, 8), [
        {"boxes": torch.tensor([[0.0, 0.0, 4.0, 4.0]]), "labels": torch.tensor([1])}
    ]


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = ["[1][0]['boxes']"]  # argument paths whose container entry changes
