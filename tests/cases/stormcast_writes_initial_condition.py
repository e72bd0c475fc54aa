"""A forecast overwrites its initial condition step by step.

A forecast wrapper loops over batch/time and assigns each step's result back into a slice of the
tensor it was given, then returns that same object: the initial condition is lost, and a
generator yields the same storage at every step so step N reads as step N+1.

Wanted: input intact and output not sharing its storage (the fix added a test asserting both)

Reported in: NVIDIA/earth2studio/issues/1133 (fix pull/1134)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(3, 3)

    @torch.no_grad()
    def forward(self, x):
        for i in range(x.size(0)):
            x[i : i + 1] = self.step(x[i : i + 1])
        return x  # same object as the argument


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 3),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
