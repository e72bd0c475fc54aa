"""The versions that this project claims: the same everywhere, and those that were tested."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "compat.py"

pytestmark = pytest.mark.skipif(
    not (ROOT / ".github").exists(), reason="needs a checkout, with its tools and workflows"
)


@pytest.fixture(scope="module")
def compat():
    """Return the tool as a module."""
    spec = importlib.util.spec_from_file_location("compat_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project():
    """Return the metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(*names):
    """Return the text of a file."""
    return ROOT.joinpath(*names).read_text(encoding="utf-8")


def test_the_floor_is_named_alike(compat, project):
    """The oldest Python and torch of the metadata are those of the README."""
    python = project["requires-python"].removeprefix(">=")
    torch = compat.floor().removesuffix(".0")
    assert f"Python {python} or newer and torch {torch} or newer" in read("README.md")
    assert compat.PYTHONS[0] == python


def test_ci_runs_every_python(compat):
    """The workflows name the Pythons that the tool looks for, and no other."""
    tests = re.search(r"python-version: \[(.*)\]", read(".github", "workflows", "ci.yml"))[1]
    assert tuple(re.findall(r"[\d.]+", tests)) == compat.PYTHONS
    found = re.findall(
        r'torch: (\w+), python-version: "([\d.]+)"', read(".github", "workflows", "compat.yml")
    )
    assert {torch for torch, _ in found} == {"floor", "newest"}
    assert {python for _, python in found} <= set(compat.PYTHONS)


@pytest.mark.skipif("SAFEMODULE_COMPAT" in os.environ, reason="the table is being made")
def test_the_table_shows_what_is_claimed(compat, project):
    """The oldest torch and each Python of the metadata passed, and every row did."""
    rows = compat.read(ROOT / "docs" / "_generated" / "versions.md").values()
    claimed = {c.split()[-1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert claimed == {row.python for row in rows}
    assert compat.floor() in {row.torch for row in rows}
    for row in rows:
        assert re.fullmatch(r"\d+ passed(, \d+ (skipped|xfailed|xpassed))*", row.result), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.date), row


def test_the_table_is_kept(compat, tmp_path):
    """What is written is read again, oldest first, and a row that ran again takes the old place."""
    table = tmp_path / "new" / "versions.md"
    assert compat.read(table) == {}
    rows = [
        compat.Row("2.10.0", "3.11", "5 passed", "2026-01-02"),
        compat.Row("2.6.0", "3.13", "**1 failed, 4 passed**", "2026-01-01"),
        compat.Row("2.6.0", "3.9", "5 passed", "2026-01-01"),
    ]
    compat.write(table, {(row.torch, row.python): row for row in rows})
    assert list(compat.read(table).values()) == rows[::-1]
    assert table.read_text(encoding="utf-8").startswith(compat.HEADER)


def test_pins_are_those_of_the_test_tools(compat):
    """Nothing that torch needs is held back."""
    pins = compat.test_pins().splitlines()
    assert any(pin.startswith("pytest==") for pin in pins)
    assert not any(pin.startswith(("torch", "sympy", "sphinx")) for pin in pins)


def test_finds_the_running_python(compat):
    """A version that is not there is None, not whatever a launcher starts instead."""
    found = compat.find_python("{}.{}".format(*sys.version_info))
    assert found is not None
    assert compat.find_python("3.2") is None
