"""A static key/value cache is written, as it is meant to be.

Static caches are written with index_copy_/slice assignment: an intended mutation of an
argument. A guard needs an allow-list for it, and must still report the others.

Wanted: declare argument `cache` as mutable; no report for it

Reported in: huggingface/optimum-habana/pull/1069 (index_copy_ KV cache kept as input mutation)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x, cache, pos):
        k, v = cache
        k.index_copy_(1, pos, x)
        v.index_copy_(1, pos, x)
        return (k * v).sum()


def inputs():
    """Return the caller's arguments."""
    return torch.randn(1, 1, 2), (torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)), torch.tensor([0])


# What a plain nn.Module does to the caller:
WRITTEN = ["[1][0]", "[1][1]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
