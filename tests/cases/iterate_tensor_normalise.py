"""An image is normalised channel by channel in place.

Iterating a tensor gives unbind views since 1.7; in-place normalisation per channel worked
before and raises when the input requires grad. Without grad it silently changes the image.

Wanted: image unchanged; same answer with and without grad

Reported in: paarthneekhara/AdversarialDeepFakes/issues/23 (also haofanwang/Score-CAM/issues/28, pytorch/pytorch/issues/48149)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, img):
        for c, m in zip(img, (0.1, 0.2, 0.3), strict=True):
            c.sub_(m).div_(0.5)
        return img.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.rand(3, 2, 2),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
