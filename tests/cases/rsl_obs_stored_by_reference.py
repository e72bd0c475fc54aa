"""An environment refills an observation that the policy has kept.

The policy keeps a reference to the observation it was given; the simulator then refills its
observation buffer in place, so the stored observation of step t becomes that of t+1. Recomputed
old log-probs were off by several units. The write is made by the caller, after the call.

Wanted: detect that a tensor passed to a sub-module is written later while still held by it; or
snapshot

Reported in: leggedrobotics/rsl_rl/issues/222 (same cause fixed in Motphys/UniLab/pull/799)
"""

from __future__ import annotations

import torch
from torch import nn


class Policy(nn.Module):
    """Part of the report."""

    def forward(self, obs):
        self.stored = obs
        return obs["o"].sum(-1)


class M(nn.Module):  # M plays agent loop + env
    """The reported module."""

    def __init__(self):
        super().__init__()
        self.pi = Policy()

    def forward(self, obs):
        a = self.pi(obs)
        obs["o"].copy_(obs["o"] + 1)  # env.step refills its buffer
        return a, self.pi.stored["o"].sum(-1)


def inputs():
    """Return the caller's arguments."""
    return ({"o": torch.zeros(2, 3)},)


# What a plain nn.Module does to the caller:
WRITTEN = ["[0]['o']"]  # argument paths whose tensors change
REBOUND = []  # argument paths whose container entry changes
