"""The hot path does not grow unseen."""

from __future__ import annotations

import json

import pytest
import torch

from safemodule import SafeModule
from tests.call_counts import FILE, measure

HELD = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def counts():
    """What is counted now."""
    return measure()


@pytest.mark.parametrize("kind", ["functions", "operators"])
@pytest.mark.parametrize("what", HELD)
def test_nothing_grew(counts, what, kind):
    """No more than is held in the file; where it became less, the file is to be renewed."""
    assert counts[what][kind] <= HELD[what][kind], "if this is meant: python -m tests.call_counts"


def test_every_count_is_held(counts):
    """The file and the measurement name the same things."""
    assert counts.keys() == HELD.keys()


@pytest.mark.parametrize("grad", [False, True])
def test_no_memory_for_reading(grad):
    """A guarded call that reads allocates no byte more than a plain one."""

    class Plain(torch.nn.Module):
        def forward(self, x):
            return x.sin().sum() + x[0].sum()

    class Safe(SafeModule, Plain):
        pass

    def allocated(module):
        x = torch.ones(1000, 100, requires_grad=grad)
        module(x)
        with torch.autograd.profiler.profile(profile_memory=True, use_kineto=False) as profile:
            module(x)
        return sum(max(0, event.self_cpu_memory_usage) for event in profile.function_events)

    assert allocated(Plain()) > 0
    assert allocated(Safe()) == allocated(Plain())
