"""Distributed training, in two processes over gloo: each check stands in distributed_checks.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.compat import distributed_checks

pytestmark = [
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="needs torch.distributed with gloo, which this build of torch lacks",
    ),
    pytest.mark.slow,
]


def test_distributed(tmp_path):
    """Guarded modules in two processes do what plain ones do: every check of distributed_checks.py."""
    mp.spawn(
        distributed_checks.run_all,
        args=(str(tmp_path / "store"), str(tmp_path / "out")),
        nprocs=2,
    )
    for rank in range(2):
        found = torch.load(f"{tmp_path / 'out'}.{rank}", weights_only=True)
        assert list(found) == list(distributed_checks.CHECKS)
        failed = {name: result for name, result in found.items() if result != "ok"}
        report = "\n".join(f"{name} in process {rank}:\n{text}" for name, text in failed.items())
        assert not failed, report
