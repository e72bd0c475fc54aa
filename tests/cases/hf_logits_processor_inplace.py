"""A logits processor bans a token in the scores it is given.

Logits processors wrote -inf into the scores tensor they received; the generation loop had kept
the same tensor as 'raw logits', so raw logits and processed scores were identical in the
output.

Wanted: sub-module must not change its argument; raw differs from processed

Reported in: huggingface/transformers/pull/29680 (issue 29551)
"""

from __future__ import annotations

import torch
from torch import nn


class Ban(nn.Module):
    """Part of the report."""

    def forward(self, ids, scores):
        scores[:, 0] = -float("inf")
        return scores


class M(nn.Module):
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.proc = Ban()

    def forward(self, ids, scores):
        raw = scores  # kept for the user
        return raw, self.proc(ids, scores)


def inputs():
    """Return the caller's arguments."""
    return torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 4)


# What a plain nn.Module does to the caller:
WRITTEN = ["[1]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
