"""A custom backward writes the gradient it receives.

A custom backward modifies the gradient it receives; other consumers of the same gradient get
wrong values without an error. A version snapshot around user backward was proposed.

Wanted: error that backward wrote its argument

Reported in: pytorch/pytorch/pull/194143 (issue 81417)
"""

from __future__ import annotations

import torch
from torch import nn


class Bad(torch.autograd.Function):
    """Part of the report."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)  # should be g * 2


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        a = Bad.apply(x)
        return ((a + x) * 2).sum()  # d/dx must be 6


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(3, requires_grad=True),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
