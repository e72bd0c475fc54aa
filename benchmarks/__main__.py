"""`python -m benchmarks`: measure, print the ladder, write the results.

`python -m benchmarks report` writes docs/benchmarks.md from the result files, `check` tells whether
it says what they say.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import logging
import os
import platform
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import timer

from benchmarks import _report
from benchmarks._goals import goals
from benchmarks._measure import clock_of, keep_memory
from benchmarks._questions import QUESTIONS
from benchmarks._table import Setting

CLOCKS = {time.process_time: "processor time", timer: "wall clock"}


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
    parser.add_argument("--threads", type=int, default=1, help="threads of torch's operators")
    parser.add_argument("--out", type=Path, help="folder for the result and the pictures")
    parser.add_argument("--no-pictures", dest="pictures", action="store_false")
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
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own notes
    logging.getLogger("safemodule").setLevel(logging.ERROR)
    torch.set_num_threads(options.threads)
    keep_memory()
    setting = Setting(torch.device(options.device), options.quick)
    meta = {
        "device": options.device,
        "machine": machine(setting.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": options.threads,
        "clock": CLOCKS[clock_of(setting.device)],
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "quick": options.quick,
    }
    tables: dict[str, Any] = {}
    failed = 0
    for name in options.only or QUESTIONS:
        try:
            table = QUESTIONS[name](setting).to_dict()
        except Exception:  # noqa: BLE001 -- the other questions have their answers all the same
            failed += 1
            print(f"\n{name} failed:\n{traceback.format_exc()}", flush=True)
            continue
        tables[name] = table
        print(f"\n{name}: {table['title']} [{table['unit']}]")
        print("\n".join(_report.table_lines(table)), flush=True)
        if options.out is not None:  # after each: the run may be cut short
            save(options.out, meta, tables)
    print()
    print("\n".join(_report.ladder([goal.to_dict() for goal in goals(tables)])))
    if options.out is not None:
        result = save(options.out, meta, tables)
        if options.pictures and importlib.util.find_spec("matplotlib"):
            _report.pictures(result, options.out / "pictures")
        print(f"\nwrote {options.out}")
    return 1 if failed else 0


def save(out: Path, meta: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """Write the result file, and return what is in it."""
    out.mkdir(parents=True, exist_ok=True)
    promised = [goal.to_dict() for goal in goals(tables)]
    result = {"meta": meta, "goals": promised, "tables": tables}
    (out / f"{meta['device']}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
