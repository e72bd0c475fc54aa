"""A tensor made in inference mode is updated outside of it.

Tensors made under inference_mode are later updated in normal mode (metric averaging, env reset)
and raise. Version counters do not exist for them.

Wanted: guard must work on inference tensors without reading _version

Reported in: mrdbourke/pytorch-deep-learning/issues/397 (also vllm-project/vllm/issues/1968, isaac-sim/IsaacLab-Arena/pull/96)
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, x):
        with torch.inference_mode():
            loss = x.pow(2).sum()
        loss /= 4
        return loss


def inputs():
    """Return the caller's arguments."""
    return (torch.ones(3),)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
