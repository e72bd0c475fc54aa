"""A harness runs a model twice on inputs that the model writes.

A comparison of eager and compiled runs fed the same argument object to both; the model mutates
it, so the second run starts from other values and a false mismatch is filed. Maintainers'
answer: clone inputs per run.

Wanted: tool says 'argument x is mutated by forward' before comparing results

Reported in: pytorch/pytorch/issues/118959
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x, y):
        x.mul_(2)
        return torch.prod(x + y)


def inputs():
    """Return the caller's arguments."""
    return torch.ones(3), torch.ones(3)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
