"""Waiting for a module to be imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from safemodule._import_hook import when_imported


@pytest.fixture
def later(tmp_path, monkeypatch):
    """Return the name of a module that nobody has imported."""
    (tmp_path / "imported_later.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield "imported_later"
    sys.modules.pop("imported_later", None)
    sys.meta_path[:] = finders


def test_once_it_is_imported(later):
    """It is called with the whole module, once, and nothing stays behind."""
    before, seen = list(sys.meta_path), []
    when_imported(later, lambda module: seen.append(module.value))
    assert seen == []
    assert len(sys.meta_path) == len(before) + 1
    importlib.import_module("json")
    importlib.import_module(later)
    assert seen == [1]
    assert sys.meta_path == before
    when_imported(later, lambda module: seen.append(module))
    assert seen[1:] == [sys.modules[later]]


def test_several_wait(later):
    """Each is called."""
    seen = []
    for word in ("first", "second"):
        when_imported(later, lambda _, word=word: seen.append(word))
    importlib.import_module(later)
    assert sorted(seen) == ["first", "second"]


def test_module_that_does_not_exist(later):
    """It is looked for in vain, as without us."""
    missing = f"{later}_too"
    when_imported(missing, lambda _: pytest.fail("there is no such module"))
    with pytest.raises(ModuleNotFoundError, match=missing):
        importlib.import_module(missing)
    assert importlib.util.find_spec(missing) is None
