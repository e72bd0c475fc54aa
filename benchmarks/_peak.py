"""The peak memory of a process that makes one call: `python -m benchmarks._peak VARIANT WRITTEN`.

It prints by how many bytes the call raised the most that the process ever held. The peak before the
call is that of a process that imported all and made its inputs; how much of the libraries' own files
was mapped by then differs from process to process, and drops out.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._variants import classes

COUNT = 8
SIZE = 2**22
"""Elements of each input: 16 MiB."""


def forward(self: Any, *xs: Tensor) -> Tensor:
    """Write the first `k` inputs."""
    for x in xs[: self.k]:
        x.mul_(1.0)
    return xs[-1]


def most() -> int:
    """Return the most bytes this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` of a Linux process begins at that of its parent
        text = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if text is not None:
            return int(text[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Make the call."""
    torch.set_num_threads(1)
    logging.getLogger("safemodule").setLevel(logging.ERROR)
    name, written = sys.argv[1], int(sys.argv[2])
    module = classes(forward)[name]
    module.k = written
    xs = [torch.ones(SIZE) for _ in range(COUNT)]
    small = torch.ones(8)
    for _ in range(2):
        module(*[small.clone() for _ in range(COUNT)])  # what first calls alone take
    before = most()
    kept = module(*xs)
    print(most() - before)
    del kept


if __name__ == "__main__":
    main()
