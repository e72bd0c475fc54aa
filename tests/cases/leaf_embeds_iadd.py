"""Position embeddings are added to a leaf in place.

Passing own embeddings (leaf, requires grad, or output of a linear) to a language model that
adds position embeddings with += raises; without grad the caller's embeddings are changed.

Wanted: works with any leaf; same finding whether or not grad is needed

Reported in: huggingface/huggingface_hub/issues/2598 (also NVlabs/VILA/pull/199)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(3, 4))

    def forward(self, inputs_embeds):
        inputs_embeds += self.pos
        return inputs_embeds.sum()


def inputs():
    """Return the caller's arguments."""
    return (torch.randn(1, 3, 4, requires_grad=True),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
REFUSED = True  # plain PyTorch refuses the write; on a copy it succeeds, and is logged
