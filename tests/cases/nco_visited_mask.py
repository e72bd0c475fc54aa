"""A decoder marks visited cities in a mask that the step before still needs.

Pointer-network decoding passes a visited mask to each step and marks the chosen city in it.
When the step's masked_fill keeps the mask for backward, the in-place update breaks it; when it
does not, the model silently does not learn. In the report the network started to learn once the
mask handling was fixed, with a mask cloned per step (exact cause not spelled out there).

Wanted: say: argument `mask` of Step was modified after the call, at this line; suggest clone or
scatter

Reported in: pemami4911/neural-combinatorial-rl-pytorch/issues/5
"""

from __future__ import annotations

import torch
from torch import nn


class Step(nn.Module):
    """Part of the report."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, emb, mask):
        return self.q(emb).sum(-1).masked_fill(mask, -1e9).log_softmax(-1)


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.step = Step()

    def forward(self, emb, mask):
        lp = 0.0
        for _ in range(3):
            logp = self.step(emb, mask)
            v, a = logp.max(-1)
            mask.scatter_(1, a[:, None], True)  # caller's and saved mask
            lp = lp + v
        return lp.sum()


def inputs():
    """Return the caller's arguments."""
    return torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.bool)


# What a plain nn.Module does to the caller:
WRITTEN = ["[1]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
