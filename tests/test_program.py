"""Programs that cannot be run are refused in Python's own words; `tests/test_run.py` runs the others."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from safemodule import _program
from safemodule._program import CannotRunError, load


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """Run in an empty folder; arguments and path are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return tmp_path


def words(*argv):
    """Return the last line that Python prints, and its exit status."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1].partition(": ")[2], done.returncode


@pytest.mark.parametrize(
    "name",
    ["no_such_module", "no_such.module", "pkg", "pkg.missing", "math", "a..b", "json.decoder.x"],
)
def test_module_that_cannot_be_run(place, name):
    """Missing, a bare package, without code, or no name at all."""
    (place / "pkg").mkdir()
    (place / "pkg" / "__init__.py").write_text("")
    with pytest.raises(CannotRunError) as refused:
        load(name, [], module=True)
    assert (str(refused.value), refused.value.status) == words("-m", name)


def test_module_without_a_spec(monkeypatch):
    """Python's search refuses it by a ValueError."""
    monkeypatch.setitem(sys.modules, "bare", types.ModuleType("bare"))
    with pytest.raises(CannotRunError, match=r"specification for 'bare' \(bare.__spec__ is None\)"):
        load("bare", [], module=True)


def test_package_that_forbids_a_search(monkeypatch):
    """A loader of somebody's own may call a module a package without making it one."""
    spec = ModuleSpec("odd", None, is_package=True)
    odd = types.ModuleType("odd")
    odd.__spec__ = spec
    monkeypatch.setitem(sys.modules, "odd", odd)
    with pytest.raises(CannotRunError, match=r"No module named odd\.__main__; 'odd' is a package"):
        load("odd", [], module=True)


def test_script_that_cannot_be_opened(place):
    """As Python says it."""
    with pytest.raises(CannotRunError) as refused:
        load("missing.py", [], module=False)
    assert str(refused.value) in f"can't open file: {words('missing.py')[0]}"
    assert refused.value.status == words("missing.py")[1] == 2
    with pytest.raises(CannotRunError, match="can't find '__main__' module in"):
        load(str(place), [], module=False)


def test_safe_path(place):
    """With -P nothing is put in front of the path."""
    (place / "program.py").write_text("import sys; print(sys.path[0])")
    code = (
        # the file alone, which needs no torch
        "import importlib.util, sys;"
        f"spec = importlib.util.spec_from_file_location('safemodule._program', {_program.__file__!r});"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        "before = sys.path[0]; module.load('program.py', [], module=False);"
        "print(sys.path[0] == before)"
    )
    for flags, same in (("-P", "True"), ("-B", "False")):
        done = subprocess.run(
            [sys.executable, flags, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == same, done.stderr
