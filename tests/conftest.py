"""What all tests share: a clean state for each, seeds, CUDA skips and Hypothesis profiles."""

from __future__ import annotations

import os
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
    """Make every run the same, whatever the environment says."""
    # The library reads it once, when it is first imported.
    os.environ.pop("SAFEMODULE_MODE", None)
    # Tensors here are small, and workers share the cores.
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
def _fresh_state():
    """Start each test from the defaults and the same random numbers, and see that it left no state.

    Unlike a test that sets the mode of the process, which is put back, one that leaves a block open
    has found a leak: in itself or in the library.
    """
    from safemodule import _modes, _record, _report

    random.seed(0)
    torch.manual_seed(0)
    _modes.set_mode(None)
    _report.forget_sites()
    yield
    _modes.set_mode(None)
    left = {
        "mode": _modes.get_mode(),
        "logs": _record.active_logs(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "interception": torch._C._is_torch_function_enabled(),
        "dtype": torch.get_default_dtype(),
    }
    torch.set_grad_enabled(True)
    assert left == {
        "mode": "copy",
        "logs": (),
        "gradients": True,
        "inference": False,
        "interception": True,
        "dtype": torch.float32,
    }
