"""Functional batch norm updates the statistics it is given.

Functional batch_norm in training mode updates the running statistics it is given; under
autocast the update is lost when a cast makes a copy, so whether the argument changes depends on
dtype.

Wanted: statistics write visible to a guard although no op name ends in underscore

Reported in: pytorch/pytorch/issues/65788
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x, rm, rv):
        return F.batch_norm(x, rm, rv, training=True)


def inputs():
    """Return the caller's arguments."""
    return torch.randn(8, 3) + 5, torch.zeros(3), torch.ones(3)


# What a plain nn.Module does to the caller:
WRITTEN = ["[1]", "[2]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
