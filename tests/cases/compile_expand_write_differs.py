"""One element of an expanded scalar is written.

One-element write to an expanded 0-d input changes all elements in eager but one in compiled
code. Maintainers doubt that it should be supported.

Wanted: reported as a write to x in both

Reported in: pytorch/pytorch/issues/152425
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        a = x.expand(2)
        a[-1] = 3
        return a * 1


def inputs():
    """Return the caller's arguments."""
    return (torch.tensor(1),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
