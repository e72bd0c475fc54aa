"""The table of compatibility: it names every test of this folder, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from tests.compat.table import ROWS, Verdict

FOLDER = Path(__file__).parent


def names_of_tests():
    """Return `module::function` of every test of this folder but this module's."""
    return {
        f"{path.stem}::{node.name}"
        for path in FOLDER.glob("test_*.py")
        if path != Path(__file__)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    }


def test_every_name_is_a_test():
    """No line of the table rests on a test that is gone."""
    named = {name for row in ROWS for name in row.tests}
    assert named <= names_of_tests()
    assert all(row.tests for row in ROWS)


def test_every_test_has_a_line():
    """No test stands outside the table."""
    assert names_of_tests() <= {name for row in ROWS for name in row.tests}


def test_verdicts_and_notes():
    """What differs is explained, in sentences; nothing is listed twice."""
    for row in ROWS:
        assert row.verdict in get_args(Verdict)
        assert row.note or row.verdict == "works", row.feature
        assert not row.note or row.note.endswith("."), row.feature
        assert not row.issue or row.issue.startswith("https://github.com/"), row.feature
    features = [(row.group, row.feature) for row in ROWS]
    assert len(features) == len(set(features))


def test_groups_stand_together():
    """A group is one block of the table."""
    groups = [row.group for row in ROWS]
    blocks = [group for i, group in enumerate(groups) if i == 0 or groups[i - 1] != group]
    assert len(blocks) == len(set(blocks))
