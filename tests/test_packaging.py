"""What is shipped: a silent import, one version, typing information, two dependencies."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safemodule
from safemodule._version import __version__

PACKAGE = Path(safemodule.__file__).parent
ROOT = Path(__file__).parent.parent


def run_python(*args):
    """Run Python in a process of its own, away from the repository, and return the result."""
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=PACKAGE.anchor)


def test_import_is_silent_with_warnings_as_errors():
    """Importing the package warns about nothing and prints nothing."""
    done = run_python("-W", "error", "-c", "import safemodule")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_brings_no_other_package():
    """Beside torch, which brings its own, the package imports only the standard library."""
    code = """
import sys, torch, typing_extensions
before = set(sys.modules)
import safemodule
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    brought = set(done.stdout.split())
    assert "safemodule" in brought
    assert brought - {"safemodule"} <= sys.stdlib_module_names


def test_version_is_that_of_the_distribution():
    """`safemodule.__version__` and the installed metadata agree."""
    assert safemodule.__version__ == __version__ == importlib.metadata.version("safemodule")


def test_version_stands_in_one_place():
    """The build reads the version from `_version.py`: no other file of the project assigns one."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in pyproject
    assert not re.search(r"^version\s*=\s*[\"']", pyproject, flags=re.MULTILINE)
    assigning = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^__version__\s*[:=]", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert assigning == ["_version.py"]


def test_changelog_has_the_version():
    """The changelog has a section for this version, and one for what comes next."""
    headings = re.findall(
        r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert headings[0] == "Unreleased"
    assert headings[1] == __version__


def test_types_are_shipped():
    """The marker file tells type checkers that the package is typed."""
    assert (PACKAGE / "py.typed").read_bytes() == b""


def test_runtime_dependencies_are_torch_and_typing_extensions():
    """Nothing else is installed along with the package."""
    requires = importlib.metadata.requires("safemodule") or []
    runtime = {re.split(r"[^\w-]", line)[0] for line in requires if "extra ==" not in line}
    assert runtime == {"torch", "typing-extensions"}


@pytest.mark.parametrize("name", ["torch", "pytest", "ruff", "pyright", "sphinx", "hypothesis"])
def test_constraints_pin_the_tools(name):
    """Development and CI run with versions that are written down."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    assert re.search(rf"^{name}==\d", constraints, flags=re.MULTILINE)


def test_public_names_say_so():
    """Tracebacks, pickles and help show `safemodule.Name`, not the private file it lives in."""
    wrong = {
        name: value.__module__
        for name in safemodule.__all__
        if (inspect.isclass(value := getattr(safemodule, name)) or inspect.isfunction(value))
        and value.__module__ != "safemodule"
    }
    assert wrong == {}
