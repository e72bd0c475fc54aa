"""A policy adds a key to the caller's batch.

Policies added keys to the batch dict given to forward; fixed by a shallow copy 'so that adding
a key does not modify the original'. Tensors were never touched.

Wanted: keys of the caller's dict unchanged

Reported in: huggingface/lerobot/pull/323
"""

from __future__ import annotations

import torch
from torch import nn


class M(nn.Module):
    """The reported module."""

    def forward(self, batch):
        batch["images"] = torch.stack([batch["cam0"], batch["cam1"]], dim=1)
        return batch["images"].mean()


def inputs():
    """Return the caller's arguments."""
    return ({"cam0": torch.rand(1, 2), "cam1": torch.rand(1, 2)},)


# What a plain nn.Module does to the caller:
WRITTEN = []  # argument paths whose tensors change
REBOUND = ["[0]['images']"]  # argument paths whose container entry changes
