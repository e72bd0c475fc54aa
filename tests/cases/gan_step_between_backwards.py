"""An optimiser steps between two backward passes over one graph.

Optimizer updates discriminator weights in place between two backward passes that share a graph;
since 1.5 the check fires and points at a transposed weight nobody recognises.

Wanted: message naming the parameter and the optimizer step as the writer

Reported in: pytorch/pytorch/issues/39141
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.d = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.opt = torch.optim.SGD(self.d.parameters(), lr=0.1)

    def forward(self, fake):
        out = self.d(fake)
        out.mean().backward(retain_graph=True)
        self.opt.step()
        return (1 - out).mean()  # backward of this one fails


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 3, requires_grad=True),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
