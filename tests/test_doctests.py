"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import safemodule

# An example may need what the module it stands in does not import: each imports what it uses, as a
# reader would. Only the directives of the standard library are in force.
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules():
    """Yield the package and its modules, except the one that runs the command line."""
    yield safemodule
    for info in pkgutil.walk_packages(safemodule.__path__, "safemodule."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def examples():
    """Return the docstring tests that have at least one example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {}
    for module in modules():
        for test in finder.find(module):
            if test.examples:
                # A public class is found in its own module and again through the package.
                found.setdefault((test.filename, test.lineno), test)
    return list(found.values())


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_docstring(test):
    """The example prints what it says."""
    failures = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("name", [name for name in safemodule.__all__ if not name.startswith("_")])
def test_public_name_has_an_example(name):
    """A reader of the API reference sees how each name is used."""
    value = getattr(safemodule, name)
    assert value.__doc__
    assert ">>>" in value.__doc__
