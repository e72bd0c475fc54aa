"""What memory is paid for: the written inputs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks import _measure as measure
from benchmarks import _peak
from benchmarks._calls import case
from benchmarks._table import Setting, Table
from benchmarks._variants import KEEPERS, classes

if TYPE_CHECKING:
    from collections.abc import Callable


def _extra(run: Callable[[str], measure.Case], device: torch.device, unit: int) -> dict[str, float]:
    """Return what each variant allocates over plain."""
    base = measure.allocated(run("plain"), device)
    return {name: (measure.allocated(run(name), device) - base) / unit for name in KEEPERS}


def written_inputs(setting: Setting) -> Table:
    """Extra bytes when k of n inputs are written."""
    count, size = _peak.COUNT, 2**16 if setting.quick else 2**20
    table = Table(
        "written",
        f"Extra bytes when k of {count} inputs of {size * 4 // 2**10} KiB are written",
        "MiB over a plain module that writes the same",
        ["written", "of the k inputs", *KEEPERS],
        note="On a CPU the bytes that operators allocate, on CUDA the peak.",
        x="written",
        drawn=list(KEEPERS),
    )
    modules = classes(_peak.forward)
    xs = [torch.ones(size, device=setting.device) for _ in range(count)]
    for k in (0, 1, 2, 4, 8):
        measure.progress(f"written: {k}")
        for module in modules.values():
            module.k = k
        row = table.add(**{"written": k, "of the k inputs": k * size * 4 / 2**20})
        row |= _extra(lambda name: case(modules[name], *xs), setting.device, 2**20)
    return table


def written_slice(setting: Setting) -> Table:
    """Extra bytes when the written input is a slice of a large storage."""
    large = torch.ones(2**22, device=setting.device)
    table = Table(
        "slice",
        "Extra bytes when a written input is a slice of a storage of 16 MiB",
        "KiB over a plain module that writes the same",
        ["slice", "of the slice", *KEEPERS],
        drawn=list(KEEPERS),
    )

    def forward(self: Any, x: Tensor) -> Tensor:
        del self
        return x.mul_(1.0)

    modules = classes(forward)
    for size in (2**8, 2**12, 2**16):
        measure.progress(f"slice: {size} elements")
        kib = size * 4 / 2**10
        row = table.add(**{"slice": f"{kib:g} KiB", "of the slice": kib})
        row |= _extra(
            lambda name, size=size: case(modules[name], large[:size]), setting.device, 2**10
        )
    return table


def peak_memory(setting: Setting) -> Table:
    """Peak memory: of a fresh process on a CPU, allocated and reserved on CUDA."""
    cuda = setting.device.type == "cuda"
    written = (2,) if setting.quick else (0, 2, 8)
    mib = _peak.SIZE * 4 / 2**20
    table = Table(
        "peak",
        f"Peak memory of one call with {_peak.COUNT} inputs of {mib:g} MiB, of which some are written",
        "MiB over a plain module that writes the same",
        ["written", "memory", "of the k inputs", *KEEPERS],
        note="Allocated and reserved on the device."
        if cuda
        else "By how much the call raises the peak of a fresh process, as the system counts it.",
        drawn=list(KEEPERS),
    )
    for k in written:
        measure.progress(f"peak: {k} written")
        for memory, peaks in (_on_cuda(k) if cuda else _of_processes(k)).items():
            labels = {"written": f"{k} written", "memory": memory, "of the k inputs": k * mib}
            row = table.add(**labels)
            row |= {name: (peaks[name] - peaks["plain"]) / 2**20 for name in KEEPERS}
    return table


def _on_cuda(k: int) -> dict[str, dict[str, int]]:
    modules = classes(_peak.forward)
    xs = [torch.ones(_peak.SIZE, device="cuda") for _ in range(_peak.COUNT)]
    found: dict[str, dict[str, int]] = {"allocated": {}, "reserved": {}}
    for name in ("plain", *KEEPERS):
        modules[name].k = k
        run = case(modules[name], *xs)
        run()
        found["allocated"][name], found["reserved"][name] = measure.cuda_peaks(run)
    return found


def _of_processes(k: int) -> dict[str, dict[str, int]]:
    """Run each variant in a process of its own; two at a time, as nothing is timed."""

    def peak(name: str) -> int:
        command = [sys.executable, "-m", "benchmarks._peak", name, str(k)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent
        )
        return int(done.stdout)

    names = ("plain", *KEEPERS)
    with ThreadPoolExecutor(2) as pool:
        return {"process": dict(zip(names, pool.map(peak, names), strict=True))}
