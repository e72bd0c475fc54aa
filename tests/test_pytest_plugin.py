"""The pytest plugin: tests run guarded, and the summary says what was written."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

MODULE = """
import pytest, torch
class Shift(torch.nn.Module):
    def forward(self, x, cache=None):
        x += 1
        if cache is not None:
            cache += 1
        return x
def write(**more):
    x = torch.zeros(3)
    Shift()(x, **more)
    return x.tolist() == [1, 1, 1]
"""


@pytest.fixture
def run(pytester):
    """Run tests in this process: the plugin is the installed one, and torch is there already."""

    def run(tests, *args, ini=""):
        pytester.makeini(f"[pytest]\n{ini}\n")
        pytester.makepyfile(MODULE + tests)
        return pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider", *args)

    return run


def summary(result):
    """Return the rows of the section in the summary, split into cells."""
    lines = result.outlines
    start = next((i for i, line in enumerate(lines) if "safemodule: input mutations" in line), None)
    if start is None:
        return None
    rows = []
    for line in lines[start + 2 :]:
        if line.startswith("===") or " site" in line:
            break
        rows.append(re.split(r"  +", line.strip()))
    return rows


PLAIN = """
def test_plain():
    assert write()
"""
GUARDED = """
def test_guarded():
    assert not write()
"""


def test_without_options_nothing_happens(run):
    """Tests run as if the plugin were not there."""
    result = run(PLAIN)
    result.assert_outcomes(passed=1)
    assert summary(result) is None


@pytest.mark.parametrize(
    ("args", "ini"),
    [
        (["--safemodule-mode=copy"], ""),
        ([], "safemodule_mode = copy"),
        (["--safemodule-mode=copy"], "safemodule_mode = strict"),
    ],
)
def test_copy(run, args, ini):
    """The option, or the ini option, guards every module; the option wins."""
    result = run(GUARDED + GUARDED.replace("_guarded", "_again"), *args, ini=ini)
    result.assert_outcomes(passed=2)
    (row,) = summary(result)
    assert row[:3] == ["2", "add_", "x"]
    assert row[-2:] == ["test_copy.py:4 in forward", "x += 1"]


def test_off(run):
    """The option takes back what the ini option says; what a test says itself stays."""
    tests = """
def test_log(safemodule_log):
    assert not write()
"""
    result = run(PLAIN + tests, "--safemodule-mode=off", ini="safemodule_mode = strict")
    result.assert_outcomes(passed=2)


def test_warn(run):
    """The warning is at the user's line, in pytest's own summary."""
    result = run(GUARDED, "--safemodule-mode=warn", ini="filterwarnings = default")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*test_warn.py:4: InputMutationWarning: add_ wrote argument x *"])


def test_strict(run):
    """The test fails at the line; its traceback shows its own lines."""
    result = run(GUARDED, "--safemodule-mode=strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*x += 1", "E *InputMutationError: add_ would write argument x *"])
    text = result.stdout.str()
    assert "test_strict.py:4: InputMutationError" in text
    assert "/safemodule/" not in text
    assert summary(result) is None  # nothing was written


def test_marker(run):
    """It says how one test is guarded; the nearest one counts."""
    tests = """
@pytest.mark.safemodule(mode="strict")
def test_strict():
    with pytest.raises(RuntimeError, match="would write argument x"):
        write()
@pytest.mark.safemodule(mode="off")
def test_off():
    assert write()
@pytest.mark.safemodule(mode="copy", mutable=("cache",))
def test_mutable():
    cache = torch.zeros(1)
    assert not write(cache=cache)
    assert cache == 1
@pytest.mark.safemodule
def test_as_the_option_says():
    with pytest.raises(RuntimeError):
        write()
@pytest.mark.safemodule(mode="strict")
class TestClass:
    @pytest.mark.safemodule(mode="copy")
    def test_nearest(self):
        assert not write()
"""
    run(tests, "--safemodule-mode=strict").assert_outcomes(passed=5)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("'strict'", "takes mode= and mutable=, by name"),
        ("mod='strict'", "takes mode= and mutable=, by name"),
        ("mode='loud'", "mode must be one of copy, warn, strict, off, got 'loud'"),
        ("mutable='cache'", "mutable is a sequence of names, got 'cache'"),
    ],
)
def test_wrong_markers(run, marker, text):
    """They stop the run before it starts."""
    result = run(f"@pytest.mark.safemodule({marker})\ndef test():\n    pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()
    assert "test_wrong_markers.py::test" in result.stderr.str()


@pytest.mark.parametrize(
    ("args", "ini", "text"),
    [
        (["--safemodule-mode=loud"], "", "argument --safemodule-mode: invalid choice: 'loud'"),
        ([], "safemodule_mode = loud", "safemodule_mode must be one of copy, warn, strict"),
    ],
)
def test_wrong_options(run, args, ini, text):
    """As other wrong options of pytest."""
    result = run(PLAIN, *args, ini=ini)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()


def test_log_fixture(run):
    """It holds what was written in this test so far, in any thread, and guards the test."""
    tests = """
import threading
from safemodule import MutationLog
def test_first(safemodule_log):
    assert isinstance(safemodule_log, MutationLog)
    assert len(safemodule_log) == 0
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not write()
    (m,) = safemodule_log
    assert (m.op, m.argument, m.count) == ("add_", "x", 2)
def test_second(safemodule_log):
    assert len(safemodule_log) == 0
@pytest.mark.safemodule(mode="off")
def test_third(safemodule_log):
    assert write()
    assert len(safemodule_log) == 0
"""
    run(tests).assert_outcomes(passed=3)


def test_fixtures_are_guarded_too(run):
    """What a test's fixtures run is part of the test; an error in them ends the guard."""
    tests = """
@pytest.fixture
def made():
    assert not write()
    yield
    assert not write()
@pytest.fixture
def broken():
    raise RuntimeError("mine")
def test_made(made):
    pass
def test_broken(broken):
    pass
@pytest.mark.safemodule(mode="off")
def test_after():
    assert write()
"""
    result = run(tests, "--safemodule-mode=copy")
    result.assert_outcomes(passed=2, errors=1)
    assert summary(result)[0][0] == "2"


def test_summary(run):
    """All tests together, most frequent first."""
    tests = """
def test_one():
    write(cache=torch.zeros(1))
def test_two():
    write()
"""
    rows = summary(run(tests, "--safemodule-mode=copy"))
    assert [row[:3] for row in rows] == [["2", "add_", "x"], ["1", "add_", "cache"]]


def test_with_xdist(pytester):
    """Workers send what they found."""
    pytester.makepyfile(MODULE + GUARDED + GUARDED.replace("_guarded", "_again"))
    result = pytester.runpytest_subprocess(
        "-n", "1", "--safemodule-mode=copy", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2)
    assert summary(result)[0][:3] == ["2", "add_", "x"]


def test_torch_is_not_imported_for_others(tmp_path):
    """A run without the plugin's options does not pay for torch, nor for this package."""
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test():\n    print('torch' in sys.modules, 'safemodule' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[0] == "False False"
    # The plugin was there, and did something.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--markers"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "@pytest.mark.safemodule(mode=None, mutable=()): guard every module" in done.stdout
