"""Does a guarded call behave as if its inputs had been cloned, for thousands of random programs?

    python -m tests.sweep.programs [--count N] [--seed S]

A program that fails is made small and printed as a script that runs on its own.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import logging
import multiprocessing
import sys
import warnings

import hypothesis
import torch

from tests.programs.check import Mismatch, check, defined
from tests.programs.memory import Undefined
from tests.programs.shrink import shrink
from tests.programs.strategies import programs

CHUNK = 250
"""Programs of one run of Hypothesis: it remembers them all."""


@dataclasses.dataclass
class Result:
    """What one chunk came to."""

    different: int = 0
    """Programs, none counted twice."""
    failed: str = ""


def run_chunk(seed):
    """Check the programs of one seed, up to the first that fails."""
    result, seen, last = Result(), set(), []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs())
    def run(program):
        text = program.inputs + program.body
        if text in seen:
            return
        last[:] = [program]
        try:
            check(program)
        except Undefined:
            hypothesis.reject()
        seen.add(text)

    try:
        run()
    except Exception as error:  # whatever it is, the program that raised it is what matters
        small = shrink(last[0], fails)
        result.failed = f"# seed {seed}: {_reason(small) or error!r}\n{small.source()}"
    result.different = len(seen) + bool(result.failed)
    return result


def fails(program):
    """Tell whether a program has a meaning, and the library gives it another."""
    try:
        defined(program)
    except Exception:
        return False
    return _reason(program) is not None


def _reason(program):
    try:
        check(program)
    except Exception as error:
        kind = "" if isinstance(error, Mismatch) else f"{type(error).__name__}: "
        return kind + " ".join(str(error).split())
    return None


def _prepare():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("safemodule").disabled = True


def main(argv=None):
    """Run the sweep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other programs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    options = parser.parse_args(argv)
    programs_run = failures = 0
    seeds = (options.seed * 1_000_003 + n for n in itertools.count())
    with multiprocessing.get_context("spawn").Pool(options.processes, _prepare) as pool:
        running = collections.deque()
        while programs_run < options.count:
            while len(running) < 2 * options.processes:
                running.append(pool.apply_async(run_chunk, (next(seeds),)))
            result = running.popleft().get()
            programs_run += result.different
            if result.failed:
                failures += 1
                print(result.failed, flush=True)
                if failures == options.failures:
                    break
        pool.terminate()
    equal = programs_run - failures
    print(f"programs: seed {options.seed}, programs {programs_run}, equal {equal}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
