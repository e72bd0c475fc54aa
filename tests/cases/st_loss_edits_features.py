"""A loss replaces an entry of the features it is given.

A loss overwrites an entry of the features dict; the model's second forward with the same dict
during evaluation then fails or uses a truncated embedding.

Wanted: features as before after the loss

Reported in: huggingface/sentence-transformers/pull/2617
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, features):
        features["emb"] = features["emb"][:, :2]
        return features["emb"].norm(dim=-1)


def inputs():
    """Return the caller's arguments."""
    return ({"emb": torch.randn(2, 4)},)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = ["[0]['emb']"]  # argument paths whose container entry changes
