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


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run all checks once in two processes; return what each found."""
    folder = tmp_path_factory.mktemp("distributed")
    mp.spawn(
        distributed_checks.run_all, args=(str(folder / "store"), str(folder / "out")), nprocs=2
    )
    return [torch.load(f"{folder / 'out'}.{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", distributed_checks.CHECKS)
def test_distributed(name, results):
    """A guarded module in two processes does what a plain one does; see the check of that name."""
    for rank, found in enumerate(results):
        assert found[name] == "ok", f"in process {rank}:\n{found[name]}"
