"""Run the tests in fresh environments on other releases of torch and Python.

    make compat                                       # oldest and newest torch, each Python found
    make compat ARGS="--dry-run"                      # only say what would be done
    make compat ARGS="--torch 2.9.1 --python 3.12"    # one environment

Each environment is made in .compat/, used and (without --keep) removed, since most torch wheels are
CUDA builds of several GB. The library is built and installed there, without its sources on the
path. Results go to a Markdown table which the documentation includes; rows of environments that did
not run this time stay, each with the date on which it ran. The logs stay in .compat/, the failed
tests are printed.

A limit in pip's configuration that keeps the newest torch away is lifted by PIP_CONSTRAINT=/dev/null.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".compat"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NO_BUILD = "torch has no build for this Python"
HEADER = """\
| torch | Python | result | date |
| --- | --- | --- | --- |
"""


class Row(NamedTuple):
    """One environment and what came of it."""

    torch: str
    python: str
    result: str
    date: str


def find_python(version: str) -> str | None:
    """Return an interpreter of that version that really starts, or None."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    candidates = [shutil.which(f"python{version}"), shutil.which("python3"), shutil.which("python")]
    # A pyenv shim is on PATH for each version, and starts only the chosen one.
    candidates += [
        str(path)
        for root in roots
        for path in sorted(root.glob(f"versions/{version}.*/bin/python"))
    ]
    show = "import sys; print('{}.{}'.format(*sys.version_info))"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", show], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def floor() -> str:
    """Return the oldest torch that pyproject.toml claims."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (found,) = [m[1] for d in project["dependencies"] if (m := re.match(r"torch>=([\d.]+)$", d))]
    return found if found.count(".") == 2 else f"{found}.0"


def newest() -> str:
    """Return the newest torch that the package index has."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"Available versions: ([\d.]+)", listed)
    if not found:
        sys.exit(f"cannot read the versions of torch from:\n{listed}")
    return found[1]


def test_pins() -> str:
    """Return the lines of constraints.txt for the test tools.

    The others would hold back what another torch needs, sympy for one.
    """
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return text.partition("# test\n")[2].partition("\n\n")[0] + "\n"


def test(torch: str, python: str, interpreter: str, pytest_args: list[str], *, keep: bool) -> Row:
    """Make the environment, run the tests, remove it, and return the row of the table."""
    name = f"python{python}-torch{torch}"
    home = WORK / name
    log = WORK / f"{name}.log"
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    pins = WORK / "pins.txt"
    pins.write_text(test_pins(), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "SAFEMODULE_COMPAT": "1"}
    environment.pop("PYTHONPATH", None)

    def run(*command: str | Path) -> int:
        with log.open("a", encoding="utf-8") as out:
            return subprocess.run(
                [str(part) for part in command],
                check=False, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip

    log.unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(home, ignore_errors=True)
    try:
        print(f"==> {name}: installing (log in {log.relative_to(ROOT)})", flush=True)
        if not home.exists():
            run(interpreter, "-m", "venv", home)
        executable = home / "bin" / "python"
        install = (executable, "-m", "pip", "install", "-c", pins)
        if run(*install, f"torch=={torch}", f"{ROOT}[test]"):
            said = log.read_text(encoding="utf-8")
            print("\n".join(said.splitlines()[-3:]))
            no_build = f"No matching distribution found for torch=={torch}" in said
            return Row(torch, python, NO_BUILD if no_build else "could not be installed", today)
        print(f"==> {name}: testing", flush=True)
        status = run(executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *pytest_args)
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    # The closing line of pytest: "== 3 failed, 812 passed in 91.20s ==".
    text = log.read_text(encoding="utf-8")
    print(
        "".join(f"{line}\n" for line in text.splitlines() if line.startswith(("FAILED", "ERROR")))
    )
    closing = re.findall(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", text, flags=re.MULTILINE)
    result = closing[-1] if closing else f"pytest ended with status {status}"
    return Row(torch, python, f"**{result}**" if status else result, today)


def read(table: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of the table as it stands."""
    rows: dict[tuple[str, str], Row] = {}
    if table.exists():
        for line in table.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == len(Row._fields) and cells[0][:1].isdigit():
                rows[cells[0], cells[1]] = Row(*cells)
    return rows


def write(table: Path, rows: dict[tuple[str, str], Row]) -> None:
    """Write the table, oldest torch and Python first."""

    def order(key: tuple[str, str]) -> tuple[list[int], list[int]]:
        torch, python = ([int(n) for n in re.findall(r"\d+", part)] for part in key)
        return torch, python

    table.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(f"| {' | '.join(rows[key])} |\n" for key in sorted(rows, key=order))
    table.write_text(HEADER + body, encoding="utf-8")


def main() -> int:
    """Test each environment in turn; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--torch", nargs="+", default=["floor", "newest"], metavar="VERSION",
        help="versions of torch; `floor` is the oldest claimed, `newest` the newest on the index",
    )  # fmt: skip
    parser.add_argument("--python", nargs="+", default=None, metavar="X.Y")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "_generated" / "versions.md")
    parser.add_argument(
        "--keep", action="store_true",
        help="leave the environments in .compat/, and use those that are there already",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    parser.add_argument("pytest_args", nargs="*", help="options for pytest, after --")
    arguments = parser.parse_args()

    found = {version: find_python(version) for version in arguments.python or PYTHONS}
    missing = [version for version, interpreter in found.items() if not interpreter]
    if missing and arguments.python:
        parser.error(f"no Python {', '.join(missing)} on this machine")
    words = {"floor": floor, "newest": newest}
    versions = [words[word]() if word in words else word for word in arguments.torch]
    plan = [(t, p, i) for t in dict.fromkeys(versions) for p, i in found.items() if i]
    for torch, python, interpreter in plan:
        print(f"torch {torch} on Python {python} ({interpreter})")
    if missing:
        print(f"not on this machine: Python {', '.join(missing)}")
    if arguments.dry_run:
        return 0

    WORK.mkdir(exist_ok=True)
    failed = False
    for torch, python, interpreter in plan:
        row = test(torch, python, interpreter, arguments.pytest_args, keep=arguments.keep)
        print(f"==> torch {row.torch} on Python {row.python}: {row.result}", flush=True)
        if row.result == NO_BUILD:
            continue
        failed |= not re.match(r"\d+ passed", row.result)
        rows = read(arguments.output)
        rows[row.torch, row.python] = row
        write(arguments.output, rows)  # after each, so that an interruption loses nothing
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
