"""A fused loss stores its gradient in the logits buffer, unseen.

A fused loss stores its gradient in the logits buffer with a raw kernel store. The version
counter is not bumped, so autograd does not notice, and an upstream softmax computes wrong
gradients. Proposed: mark_dirty, an inplace flag, or cloning.

Wanted: an error or at least content-level detection; _version does not move

Reported in: linkedin/Liger-Kernel/pull/1251 (issue 272); unslothai/unsloth/issues/5002
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class CE(torch.autograd.Function):
    """Part of the report."""

    @staticmethod
    def forward(ctx, p, y):
        loss = F.nll_loss(p.log(), y)
        p.detach().numpy()[:] = 0.25  # stands for a kernel write
        ctx.save_for_backward(p)
        return loss

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class M(nn.Module):
    """The reported module."""

    def forward(self, z, y):
        return CE.apply(z.softmax(-1), y)


def inputs():
    """Return the caller's arguments."""
    return torch.randn(2, 4, requires_grad=True), torch.tensor([0, 3])


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
