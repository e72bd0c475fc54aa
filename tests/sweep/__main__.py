"""Run the long sweeps: what `make sweep` does.

    python -m tests.sweep [ops|grads|modules|programs|writes ...] [--sample N] [--seed S]

Without names all of them. Each prints its failures and one line; the exit code is 1 if any failed.
"""

from __future__ import annotations

import argparse
import importlib
import sys

SUITES = {
    "ops": "tests.sweep.ops",
    "grads": "tests.sweep.grads",
    "modules": "tests.sweep.modules",
    "programs": "tests.sweep.programs",
    "writes": "tests.sweep.writes_sweep",
}
# How a suite calls the number of things that `--sample` draws.
COUNTS = {"programs": "--count"}


def main(argv=None):
    """Run the suites named, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sweep", description=__doc__.splitlines()[0]
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--sample", type=int, help="how much of each to draw (all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}: there are {', '.join(SUITES)}")
    failed = False
    for name in options.suites or SUITES:
        arguments = ["--seed", str(options.seed)]
        if options.sample is not None:
            arguments += [COUNTS.get(name, "--sample"), str(options.sample)]
        # Imported late: one suite alone does not wait for the tables of the others.
        failed |= bool(importlib.import_module(SUITES[name]).main(arguments))
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
