"""Time and memory of small pieces of code, variants side by side in one run.

Machines are noisy and shared. So the variants of a question take turns in many short rounds, and what
is reported is always a difference or a ratio of two of them within a round: the median of the rounds,
with its interval. All variants are treated alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch.utils import benchmark

Case = Callable[[], object]
_BLOCK = 1e-3  # seconds: a short block fits between two interruptions


@dataclass(frozen=True)
class Figure:
    """The median of some rounds, its 95 % interval (by ranks), and the quartiles of the rounds."""

    value: float
    low: float
    high: float
    q1: float
    q3: float
    rounds: int

    def to_dict(self) -> dict[str, float]:
        short = {key: float(f"{value:.5g}") for key, value in asdict(self).items()}
        return short | {"rounds": self.rounds}


def figure(values: list[float], scale: float = 1.0) -> Figure:
    """Return the figure of some rounds."""
    values = sorted(value * scale for value in values)
    count = len(values)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    q1, _, q3 = statistics.quantiles(values, n=4) if count > 1 else values * 3
    median = statistics.median(values)
    return Figure(median, values[rank], values[count - 1 - rank], q1, q3, count)


@dataclass(frozen=True)
class Turns:
    """Seconds per run of each variant, round by round."""

    seconds: dict[str, list[float]]

    def time(self, name: str, scale: float = 1.0) -> Figure:
        """Return the time of a variant."""
        return figure(self.seconds[name], scale)

    def added(self, name: str, base: str = "plain", scale: float = 1e6) -> Figure:
        """Return the time of a variant minus that of another, in microseconds."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return figure([a - b for a, b in pairs], scale)

    def ratio(self, name: str, base: str = "plain") -> Figure:
        """Return the time of a variant over that of another."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return figure([a / b for a, b in pairs])

    def added_ratio(self, name: str, other: str, base: str = "plain") -> Figure:
        """Return the time that a variant adds to another, over what a third one adds to it."""
        rounds = zip(self.seconds[name], self.seconds[other], self.seconds[base], strict=True)
        return figure([(a - base) / max(b - base, 1e-9) for a, b, base in rounds])

    def added_over(self, name: str, other: str, base: str = "plain") -> Figure:
        """Return the time that a variant adds to another, over the whole time of a third one."""
        rounds = zip(self.seconds[name], self.seconds[other], self.seconds[base], strict=True)
        return figure([(a - base) / b for a, b, base in rounds])


def take_turns(
    cases: Mapping[str, Case], *, seconds: float, rounds: int, clock: Callable[[], float]
) -> Turns:
    """Time every case; the rounds of all cases alternate, in random order.

    A round of a case is the fastest of some blocks of a millisecond, as many for each case, which
    alternate too: noise only ever adds.

    Args:
        cases: Name -> code to time.
        seconds: About the time to spend on each case.
        rounds: Rounds of each case.
        clock: What tells the time, see `clock_of`.

    Returns:
        The seconds per run.
    """
    # Not `torch.utils.benchmark.Timer`: it runs twice before each block to warm up, three times the
    # time where a block is one run.
    timers = {
        name: timeit.Timer("case()", globals={"case": case}, timer=clock)
        for name, case in cases.items()
    }
    runs: dict[str, int] = {}
    block = 0.0
    for name, timer in timers.items():
        timer.timeit(1)  # warm-up
        once = timer.timeit(1)
        if once < _BLOCK:
            few = max(1, min(100, int(1e-4 / once) + 1))
            once = min(timer.timeit(few) for _ in range(3)) / few
        runs[name] = max(1, min(5000, int(_BLOCK / max(once, 1e-8))))
        block += runs[name] * once / len(timers)
    blocks = max(1, min(40, int(seconds / rounds / block)))
    found: dict[str, list[float]] = {name: [] for name in cases}
    order, chance = list(cases), random.Random(0)
    gc.collect()
    for _ in range(rounds):
        best = dict.fromkeys(cases, math.inf)
        for _ in range(blocks):
            chance.shuffle(order)  # no case has the same neighbour each time
            for name in order:
                best[name] = min(best[name], timers[name].timeit(runs[name]) / runs[name])
        for name, value in best.items():
            found[name].append(value)
    return Turns(found)


def keep_memory() -> None:
    """Have the allocator of a CPU keep what it has got, as that of CUDA does.

    Whether it returns a page to the system, to fetch and clear it again in the next run, hangs on
    what lies beside it: it makes one variant of a model some percent slower than another by chance.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return what tells the time.

    For one thread on a CPU the processor time of this process, to which a busy neighbour adds
    little; else the wall clock of `torch.utils.benchmark`, which waits for CUDA.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time
    return benchmark.timer


def allocated(case: Case, device: torch.device) -> int:
    """Return the bytes that one run allocates: on CUDA the peak over the start, else the sum.

    On a CPU this is what the profiler sees, the allocations of all operators added up.
    """
    case()
    if device.type == "cuda":
        return cuda_peaks(case)[0]
    profiler = torch.autograd.profiler.profile(profile_memory=True, use_kineto=False)
    with profiler as profile:
        kept = case()
        del kept
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.function_events)


def cuda_peaks(case: Case) -> tuple[int, int]:
    """Return the peak over the start of the bytes allocated and reserved on CUDA in one run."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what was reserved for earlier runs would hide what this one needs
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    kept = case()
    torch.cuda.synchronize()
    after = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    del kept
    return after[0] - before[0], after[1] - before[1]


# Operators that make a tensor and start nothing.
_NO_KERNEL = frozenset({
    "aten::alias", "aten::as_strided", "aten::detach", "aten::detach_", "aten::empty",
    "aten::empty_like", "aten::empty_strided", "aten::is_nonzero", "aten::resolve_conj",
    "aten::resolve_neg", "aten::result_type", "aten::select", "aten::slice", "aten::t",
    "aten::transpose", "aten::view", "aten::view_as", "aten::_lazy_clone", "aten::lift_fresh",
    "detach", "detach_",
})  # fmt: skip


def launches(case: Case, device: torch.device) -> int:
    """Return how many kernels and copies one run starts.

    On CUDA what the device did; on a CPU the innermost operators that compute or copy.
    """
    case()
    if device.type == "cuda":
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            case()
            torch.cuda.synchronize()
        # Annotations of ranges, and the profiler's own buffers, may stand on the device's time line.
        return sum(
            event.device_type == torch.autograd.DeviceType.CUDA
            and not getattr(event, "is_user_annotation", False)
            and not event.name.startswith("Activity Buffer")
            for event in profile.events() or ()
        )
    with torch.autograd.profiler.profile(use_kineto=False) as operators:
        case()
    return sum(
        event.name.startswith("aten::")
        and event.name not in _NO_KERNEL
        and not any(child.name.startswith("aten::") for child in event.cpu_children)
        for event in operators.function_events
    )


def progress(text: str) -> None:
    """Say what is being measured."""
    print(f"  {text}", file=sys.stderr, flush=True)
