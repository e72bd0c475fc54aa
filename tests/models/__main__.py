"""`python -m tests.models [NAME ...]`: compare architectures, print a table, exit 1 on a difference.

`--out FILE` writes the table as a page of the docs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import sys
import warnings
from pathlib import Path

import torch
import transformers

from tests.models.check import Row, check
from tests.models.generation import generate_equal
from tests.models.names import NAMES


def main(argv: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.getLogger("safemodule").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows = []
    for name in options.names or NAMES:
        try:
            row = check(name)
        except Exception as error:
            row = Row(name, faults=[f"{type(error).__name__}: {str(error)[:100]}"])
        rows.append(row)
        print(f"{name:32s} {row.submodules:4d} submodules  {row.slowdown:5.2f}x  "
              f"{'equal' if row.equal else '; '.join(row.faults)}", flush=True)  # fmt: skip
    generated = generate_equal()
    for way, verdict in generated.items():
        print(f"generate, {way}: {'equal' if verdict else 'DIFFERENT'}")
    equal = sum(row.equal for row in rows)
    print(f"models: architectures {len(rows)}, equal {equal}, "
          f"with input writes {sum(bool(row.writes) for row in rows)}")  # fmt: skip
    if options.out is not None:
        options.out.write_text(page(rows, generated))
    return int(equal < len(rows) or not all(generated.values()))


def page(rows: list[Row], generated: dict[str, bool]) -> str:
    """Return the table as a page of the docs."""
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    lines = [
        "# Real models",
        "",
        "<!-- Written by `make models ARGS='--out docs/models.md'`; do not edit. -->",
        "",
        (
            f"Tiny random models of {len(rows)} architectures of transformers {transformers.__version__},"
            f" torch {torch.__version__}, {date}. Each was run plain, with `SafeModule` on top and with"
            " every submodule guarded, in training (outputs and gradients) and in inference."
            f" {sum(row.equal for row in rows)} of {len(rows)} agree: outputs equal to the bit, gradients to rounding (they are summed in another order), inputs"
            " untouched."
        ),
        "",
        "Generation with a key/value cache: "
        + ", ".join(f"{way}: {'equal' if ok else 'different'}" for way, ok in generated.items())
        + ".",
        "",
        (
            "`slowdown` is inference with every submodule guarded over plain; these models are so small"
            " that it is nearly all overhead."
        ),
        "",
        "| model | submodules | result | slowdown | input writes found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        verdict = "equal" if row.equal else "; ".join(row.faults)
        writes = "; ".join(row.writes[:3]) + (" ..." if len(row.writes) > 3 else "")
        lines.append(
            f"| {row.name} | {row.submodules} | {verdict} | {row.slowdown:.2f} | {writes} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
