"""`python -m benchmarks`: measure, print the ladder, write the results.

`python -m benchmarks report` writes docs/benchmarks.md from the result files, `check` tells whether
it says what they say.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import sys
import warnings
from pathlib import Path

import torch

from benchmarks import _report
from benchmarks._goals import goals
from benchmarks._questions import QUESTIONS, Setting


def machine(device: torch.device) -> str:
    """Return the name of the processor or of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or '?'} cores"


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("action", nargs="?", default="run", choices=("run", "report", "check"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--only", nargs="+", choices=tuple(QUESTIONS), help="these questions only")
    parser.add_argument("--out", type=Path, help="folder for the result (default: none is written)")
    options = parser.parse_args(argv)
    if options.action == "report":
        _report.write()
        return 0
    if options.action == "check":
        return _report.check()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; rehearse with --device cpu", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import logging

    logging.getLogger("safemodule").setLevel(logging.ERROR)
    setting = Setting(torch.device(options.device), options.quick)
    tables = {
        name: question(setting).to_dict()
        for name, question in QUESTIONS.items()
        if options.only is None or name in options.only
    }
    promised = [goal.to_dict() for goal in goals(tables)]
    result = {
        "meta": {
            "device": options.device,
            "machine": machine(setting.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
            "quick": options.quick,
        },
        "goals": promised,
        "tables": tables,
    }
    for name, table in tables.items():
        print(f"\n{name}: {table['title']} [{table['unit']}]")
        print("\n".join(_report.table_lines(table["columns"], table["rows"])))
    print()
    print("\n".join(_report.ladder(promised)))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{options.device}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"\nwrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
