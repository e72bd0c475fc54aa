"""A normalisation writes the numpy image behind its tensor.

ToTensor aliased the numpy image and Normalize worked in place: with data resident in RAM the
dataset becomes more normalised every epoch; first epoch looks fine. Maintainers made Normalize
out-of-place by default.

Wanted: numpy argument unchanged / mutation reported although the argument is not a tensor

Reported in: pytorch/vision/issues/680
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, arr):
        t = torch.from_numpy(arr)  # shares memory
        t.sub_(0.5).div_(0.25)
        return t.mean()


def inputs():
    """Return the caller's arguments."""
    return (np.full((2, 3), 0.75, dtype=np.float32),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
