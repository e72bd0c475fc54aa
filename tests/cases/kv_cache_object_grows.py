"""A cache object's tensor is rebound to a longer one.

A stored key/value cache object is handed to the model; each layer rebinds self.keys to a
concatenation, so the stored cache grows every turn and prefix reuse is wrong. No tensor is
written in place; attribute rebinding on a user object.

Wanted: option to use a cache without changing it, or a report that attribute k was rebound

Reported in: MemTensor/MemOS/issues/2301 (also huggingface/transformers/issues/37078)
"""

from __future__ import annotations

import torch
from torch import nn


class Cache:
    """Part of the report."""

    def __init__(self, k):
        self.k = k


class M(nn.Module):
    """The reported module."""

    def forward(self, x, cache):
        cache.k = torch.cat([cache.k, x], dim=1)
        return (cache.k * x[:, -1:]).sum(-1)


def inputs():
    """Return the caller's arguments."""
    return torch.randn(1, 1, 4), Cache(torch.randn(1, 3, 4))


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = ["[1].k"]  # argument paths whose container entry changes
