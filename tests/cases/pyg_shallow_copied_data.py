"""A shallow copy of a graph object is written.

The base transform shallow-copies the graph object so that attribute assignment is safe, yet
`data.pos += c` still changes the original because the tensor is shared.

Wanted: original graph unchanged; users expected the copy to protect them

Reported in: pyg-team/pytorch_geometric/issues/9505 (immutable transforms: pull/7429)
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, data):
        data = copy.copy(data)
        data.pos += 4.0
        return data.pos.sum()


def inputs():
    """Return the caller's arguments."""
    return (SimpleNamespace(pos=torch.zeros(3), x=torch.ones(3)),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0].pos"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
