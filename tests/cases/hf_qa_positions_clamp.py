"""A question-answering head clamps the caller's labels.

QA heads clamp the integer label vectors (start/end positions) in place inside forward, so the
caller's label tensor comes back rewritten; anything computed from the batch afterwards is
wrong. A sweep over the library found sixteen models writing into some caller tensor (embeds,
labels, pixels). Report and PR were closed unmerged.

Wanted: labels unchanged after forward; or an error naming argument `start` and the clamp_ line

Reported in: huggingface/transformers/issues/47741 (+ pull/47742)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class M(nn.Module):
    """The reported module."""

    def __init__(s):
        super().__init__()
        s.head = nn.Linear(4, 1)

    def forward(s, h, start):
        logits = s.head(h).squeeze(-1)
        start.clamp_(0, logits.size(1))  # caller's labels
        return F.cross_entropy(logits, start, ignore_index=logits.size(1))


def inputs():
    """Return the caller's arguments."""
    return torch.randn(2, 3, 4), torch.tensor([1, 9999])


# What a plain nn.Module does to the caller:
WRITTEN = ["[1]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
