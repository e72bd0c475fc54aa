"""Boxes are converted in the tensor that holds them.

A geometry helper converts xywh to xyxy by index assignment into the argument in one mode only;
return value is right, argument is silently relabelled; calling twice compounds.

Wanted: input untouched; return value identical

Reported in: kornia/kornia/issues/4011
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, boxes, mode="xywh"):
        if mode == "xywh":
            boxes[..., 2] = boxes[..., 0] + boxes[..., 2]
            boxes[..., 3] = boxes[..., 1] + boxes[..., 3]
        return boxes * 1.0


def inputs():
    """Return the caller's arguments."""
    return (torch.tensor([[1.0, 1.0, 2.0, 1.0]]),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
