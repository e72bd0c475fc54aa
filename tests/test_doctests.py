"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import itertools
import pkgutil

import pytest

import safemodule
import safemodule.testing

# An example imports what it uses, as a reader would.
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules():
    """Return the package and its modules, except the one that runs the command line."""
    infos = pkgutil.walk_packages(safemodule.__path__, "safemodule.")
    names = [info.name for info in infos if not info.name.endswith("__main__")]
    return [safemodule, *map(importlib.import_module, names)]


def attribute_docstrings(module):
    """Yield (name, docstring, line) of what is assigned: a string below documents it."""
    body = ast.parse(inspect.getsource(module)).body
    for node, below in itertools.pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(node, ast.Assign) and is_text and isinstance(below.value.value, str):
            yield ast.unparse(node.targets[0]), inspect.cleandoc(below.value.value), below.lineno


def examples():
    """Return the docstrings that have at least one example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    parser = doctest.DocTestParser()
    found = {}
    for module in modules():
        tests = finder.find(module)
        for name, text, line in attribute_docstrings(module):
            names = dict(module.__dict__)
            full = f"{module.__name__}.{name}"
            tests.append(parser.get_doctest(text, names, full, module.__file__, line))
        for test in tests:
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


PUBLIC = [
    *((safemodule, name) for name in safemodule.__all__ if not name.startswith("_")),
    (safemodule, "Guard"),
    *((safemodule.testing, name) for name in safemodule.testing.__all__),
]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_public_name_has_an_example(module, name):
    """A reader of the API reference sees how each name is used."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        texts = [value.__doc__]
    else:
        texts = [t for m in modules() for n, t, _ in attribute_docstrings(m) if n == name]
    (text,) = texts
    assert ">>>" in text


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, n) for m, n in PUBLIC if inspect.isclass(getattr(m, n))],
    ids=[n for m, n in PUBLIC if inspect.isclass(getattr(m, n))],
)
def test_public_members_are_described(module, name):
    """Each method and property that a class of ours defines says what it does."""
    members = vars(getattr(module, name))
    bare = [
        member
        for member, value in members.items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not value.__doc__
    ]
    assert bare == []
