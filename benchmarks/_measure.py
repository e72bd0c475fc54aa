"""Time and memory of small pieces of code, variants side by side in one run.

These machines are noisy and shared, so the variants of a question are measured in turns, round after
round, and each figure is the median of the rounds with its interquartile range. The quantity that
matters is always a ratio of two of them.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch.utils.benchmark import Timer

Case = Callable[[], object]


@dataclass(frozen=True)
class Time:
    """Seconds of one run: the fastest round, the median of the rounds and their spread."""

    best: float
    median: float
    iqr: float
    rounds: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def times(
    cases: Mapping[str, Case], *, seconds: float = 0.5, rounds: int = 15, threads: int = 1
) -> dict[str, Time]:
    """Time every case; the rounds of all cases alternate.

    Args:
        cases: Name -> code to time.
        seconds: Time to spend on each case.
        rounds: Rounds of each case.
        threads: Threads of torch's operators.

    Returns:
        Name -> seconds per run. `best` is the fastest round, the figure to compare where the
        machine is shared: noise only ever adds.
    """
    timers = {
        name: Timer("case()", globals={"case": case}, num_threads=threads)
        for name, case in cases.items()
    }
    # `timeit` synchronises CUDA before and after. Short blocks fit between two interruptions.
    counts = {}
    for name, timer in timers.items():
        timer.timeit(2)  # warm-up
        once = min(timer.timeit(3).mean for _ in range(3))
        counts[name] = max(1, min(2000, int(seconds / rounds / max(once, 1e-8))))
    found: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    for _ in range(rounds):
        for name, timer in timers.items():
            # A block of at most 1 ms: several in a round, the best one counts.
            size = max(1, min(counts[name], int(1e-3 / max(_last(found[name]), 1e-7)) or 1))
            blocks = max(1, counts[name] // size)
            found[name].append(min(timer.timeit(size).mean for _ in range(min(blocks, 40))))
    return {
        name: Time(min(all_), statistics.median(all_), _iqr(all_), len(all_))
        for name, all_ in found.items()
    }


def _last(values: list[float]) -> float:
    return values[-1] if values else 1e-5


def _iqr(values: list[float]) -> float:
    if len(values) < 4:
        return max(values) - min(values)
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def allocated(case: Case, device: torch.device) -> int:
    """Return the bytes that one run allocates: on CUDA the peak over the start, else the sum.

    On a CPU this is what the profiler sees, the allocations of all operators added up.
    """
    case()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = case()
        torch.cuda.synchronize(device)
        del kept
        return torch.cuda.max_memory_allocated(device) - before
    profiler = torch.autograd.profiler.profile(profile_memory=True, use_kineto=False)
    with profiler as profile:
        kept = case()
        del kept
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.function_events)


def launches(case: Case) -> int:
    """Return how many CUDA kernels and copies one run starts."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    case()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        case()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return sum(event.device_type == cuda for event in profile.events())


def progress(text: str) -> None:
    """Say what is being measured."""
    print(f"  {text}", file=sys.stderr, flush=True)
