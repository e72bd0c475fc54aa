"""A fused kernel writes the residual, which is the layer's input.

A decoder layer aliases residual to its input and calls a fused add+norm that writes the
residual buffer; the tensor is still live outside the layer, and hidden states of deep layers
lose agreement with the reference (cosine about 0.5). One clone fixed it.

Wanted: the layer's argument must be intact; location of the write inside the helper

Reported in: sgl-project/sglang/pull/28005
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def fused_add_norm(x, residual):  # writes residual, returns normed
    """Return what the report computes."""
    residual.add_(x)
    return F.layer_norm(residual, residual.shape[-1:])


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(4, 4)

    def forward(self, hidden):
        residual = hidden
        h = fused_add_norm(self.attn(hidden).detach(), residual)
        return h, residual


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(2, 4),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
