"""Build what would be released, look at it, install it, and test what was installed.

    make release-check

1. Build the sdist, and the wheel from the sdist, into dist/.
2. Check the metadata as the package index would (twine).
3. Compare the contents with what git has.
4. Install the wheel into a fresh environment, with torch from constraints.txt.
5. Unpack the sdist, delete its src/, and run its tests against the installed wheel. The README's
   example is one of them.
6. Check that the types of the public API are complete.
7. Start the command line.

Everything but dist/ is made in a temporary folder and is gone afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent

# Development of the repository itself, of no use to somebody who has the sdist.
NOT_IN_SDIST = (".ci/", ".github/", ".pre-commit-config.yaml")
IN_WHEEL = (
    "safemodule/__init__.py",
    "safemodule/py.typed",
    "pytest_safemodule.py",
    ".dist-info/entry_points.txt",
    ".dist-info/licenses/LICENSE",
)


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n==> {text}", flush=True)


def run(*command: str | Path, cwd: Path = ROOT, path: Path | None = None) -> None:
    """Run a command and stop if it fails. Its environment has no path to the sources.

    Programs are looked for in `path` first.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=environment)


def build(dist: Path) -> tuple[Path, Path]:
    """Build both archives and return (sdist, wheel)."""
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", dist)
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    return sdist, wheel


def tracked() -> set[str]:
    """Return the files that git has."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def complain(title: str, names: Iterable[str]) -> None:
    """Stop with the list of names, if there are any."""
    if listed := sorted(names):
        sys.exit(f"{title}:\n" + "\n".join(f"  {name}" for name in listed))


def check_sdist(sdist: Path) -> None:
    """Compare the sdist with what git has: all of it, and nothing else."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    expected = {name for name in tracked() if not name.startswith(NOT_IN_SDIST)}
    complain("tracked by git and missing in the sdist", expected - names)
    complain("in the sdist and not tracked by git", names - expected - {"PKG-INFO"})


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has what an installation needs, and nothing beside."""
    names = zipfile.ZipFile(wheel).namelist()
    complain("missing in the wheel", (w for w in IN_WHEEL if not any(n.endswith(w) for n in names)))
    ours = ("safemodule/", "pytest_safemodule.py", "safemodule-")
    complain("not expected in the wheel", (name for name in names if not name.startswith(ours)))


def test_installed(sdist: Path, wheel: Path, scratch: Path, pytest_args: list[str]) -> None:
    """Install the wheel into a fresh environment and run the tests of the sdist against it."""
    say("fresh environment with the wheel (torch is large: this takes a minute or more)")
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[test]")

    say("the tests of the sdist, without its src")
    with tarfile.open(sdist) as archive:
        # Python has the filter since 3.11.4, and warns from 3.12 on where it is not given.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(scratch, **safe)  # noqa: S202 -- it was made just now
    tree = scratch / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(tree / "src")
    where = "import safemodule; assert 'site-packages' in safemodule.__file__, safemodule.__file__"
    run(python, "-W", "error", "-c", where, cwd=tree)
    run(python, "-m", "pytest", "-n", "2", *pytest_args, cwd=tree)

    say("the types of the public API are complete")
    # --verifytypes heeds no --pythonpath: it looks at the first Python on PATH.
    pyright = (sys.executable, "-m", "pyright", "--ignoreexternal", "--verifytypes", "safemodule")
    run(*pyright, cwd=scratch, path=python.parent)

    say("the command line")
    run(scratch / "venv" / "bin" / "safemodule", "--help", cwd=scratch)
    run(python, "-m", "safemodule", "--help", cwd=scratch)


def main() -> None:
    """Run all steps; the first that fails ends the program with an error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pytest_args", nargs="*", help="options for pytest, after --")
    arguments = parser.parse_args()
    begin = time.monotonic()

    say("build")
    sdist, wheel = build(ROOT / "dist")
    say("metadata")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    say("contents")
    check_sdist(sdist)
    check_wheel(wheel)
    print(f"{sdist.name} and {wheel.name} are complete")
    with tempfile.TemporaryDirectory(prefix="safemodule-release-") as scratch:
        test_installed(sdist, wheel, Path(scratch), arguments.pytest_args)

    say(f"ready for release, checked in {time.monotonic() - begin:.0f} s: {sdist}, {wheel}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two pytest workers share the cores
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed: {' '.join(error.cmd)}")
