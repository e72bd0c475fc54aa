"""A checkpointed function writes its argument, and runs again in backward.

A checkpointed function ending with an in-place op on a view lost its gradient in old versions;
with re-computation an argument write is also applied twice.

Wanted: report the write of x once, with the forward location; recompute doubles the damage

Reported in: pytorch/pytorch/issues/36383 and issues/26546
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        def f(t):
            t.mul_(2)  # runs again in backward
            return (t * self.w)[:].relu_()

        return checkpoint(f, x, use_reentrant=False).sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
