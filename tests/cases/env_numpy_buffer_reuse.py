"""An environment refills the numpy buffer behind a tensor.

Vectorised environments return a reference to an internal numpy buffer and refill it; tensors
created with from_numpy change later without any torch operation.

Wanted: copy on ingestion, or detection by content comparison

Reported in: Farama-Foundation/SuperSuit/pull/116 (also google-deepmind/dm_control/issues/34, openai/baselines/pull/418)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, buf):
        obs = torch.from_numpy(buf)
        q = obs.sum()
        buf[:] = buf + 1  # env writes; torch never sees it
        return q, obs.sum()


def inputs():
    """Return the caller's arguments."""
    return (np.zeros(3, dtype=np.float32),)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
