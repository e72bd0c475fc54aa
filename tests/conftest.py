"""What all tests share: a clean state for each, seeds, CUDA skips and Hypothesis profiles."""

from __future__ import annotations

import random

import hypothesis
import pytest
import torch

# "fast" is the same in each run and in `make test`; "sweep" looks further, with new examples each
# time: pytest --hypothesis-profile=sweep.
hypothesis.settings.register_profile(
    "fast", max_examples=50, derandomize=True, deadline=None, database=None
)
hypothesis.settings.register_profile("sweep", max_examples=2_000, deadline=None)
hypothesis.settings.load_profile("fast")


def pytest_configure(config: pytest.Config) -> None:
    """Keep torch to one thread: tensors here are small, and workers share the cores."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `cuda` where there is no such device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch finds none here")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeds():
    """Start each test from the same random numbers."""
    random.seed(0)
    torch.manual_seed(0)
