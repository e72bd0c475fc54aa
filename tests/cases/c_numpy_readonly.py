"""A read-only numpy array becomes a writable tensor.

Read-only numpy arrays become writable tensors because core has no read-only tensor; only a
warning, and writing is declared undefined. In compiled code the array is cloned instead. In
2026 users ask to silence the warning.

Wanted: respect the flag

Reported in: pytorch/pytorch/pull/33615 (issues/5442, issues/178261; pull/112524)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, arr):
        t = torch.from_numpy(arr)
        t += 1
        return t.sum()


def inputs():
    """Return the caller's arguments."""
    a = np.zeros(3, dtype=np.float32)
    a.setflags(write=False)
    return (a,)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
