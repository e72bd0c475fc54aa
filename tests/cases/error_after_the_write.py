"""A write of a leaf is refused, and the refusal is caught.

The leaf check used to fire after the write, so the tensor was already altered when the
exception arrived. Users who catch errors continue with corrupted data.

Wanted: a guard that raises must raise before the write

Reported in: pytorch/pytorch/issues/2940
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, a):
        with contextlib.suppress(RuntimeError):
            a.add_(1)
        return a.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.zeros(3, requires_grad=True),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
REFUSED = True  # plain PyTorch refuses the write; on a copy it succeeds, and is logged
