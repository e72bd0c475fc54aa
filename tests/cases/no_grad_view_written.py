"""A view made under no_grad is written with gradients on.

A sub-image view obtained under no_grad is assigned to with grad mode on; forward raises about
mixed modes.

Wanted: where the view was made; anomaly mode reports that since 2023

Reported in: ccarliu/m3ae/issues/15 (also Okery/PyTorch-Simple-MaskRCNN/issues/15)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(1, 2, 2))

    def forward(self, x):
        with torch.no_grad():
            crop = x[:1]
        crop[:] = crop * 0.5 + self.p
        return x.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(2, 2, 2),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
REFUSED = True  # plain PyTorch refuses the write; on a copy it succeeds, and is logged
