"""The shape of the sources: imports run one way, torch's private names stand in one file."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import safemodule

PACKAGE = Path(safemodule.__file__).parent
FILES = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.parent.glob("pytest_safemodule.py")])
NAMES = [str(path.relative_to(PACKAGE.parent)) for path in FILES]


def module_name(path):
    """Return the dotted name of a source file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node):
    """Tell whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(tree, *, nested):
    """Yield each import, without those for type checkers; `nested` includes those in functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif is_type_checking(node):
            yield from (n for n in node.orelse if isinstance(n, (ast.Import, ast.ImportFrom)))
        elif nested or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports(node, nested=nested)


def imported(path, *, nested):
    """Return the modules of the package that a file imports when it runs."""
    known = {module_name(file) for file in FILES}
    found = set()
    for node in imports(ast.parse(path.read_text(encoding="utf-8")), nested=nested):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, "the package imports by full names"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = full & known
            # `from safemodule import _modes` imports _modes; any other name is of the module itself
            found.update(modules)
            if full - modules:
                found.add(node.module)
    return found & known - {module_name(path)}


def test_imports_run_one_way():
    """No circle among the modules, imports inside functions included."""
    graph = {module_name(path): imported(path, nested=True) for path in FILES}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
    assert set(order) == set(graph)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_private_names_of_torch_stand_in_compat(path):
    """No file but `_compat.py`, and that of `explain`, reaches into `torch._something`."""
    if path.name.endswith("_compat.py"):
        return
    private = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = ""
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.Import):
            name = " ".join(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = " ".join(f"{node.module}.{alias.name}" for alias in node.names)
        if re.search(r"\btorch\.(\w+\.)*_(?!_)", name):
            private.append(f"{path.name}:{node.lineno}: {name}")
    assert private == []


# What is looked up as text outside of the `*_compat.py` files.
LOOKED_UP = {
    "_fields",  # of named tuples, described in the documentation of Python
    "_make",
    "_safemodule",  # our own, on tensors of others
}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_private_name_is_looked_up_as_text(path):
    """A name in quotes, or one put together, is held to the same rule."""
    if path.name.endswith("_compat.py"):
        return
    private = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}:
            name = node.args[1]
            text = name.value if isinstance(name, ast.Constant) else ast.unparse(name)[2:]
            is_text = isinstance(name, (ast.Constant, ast.JoinedStr))
            if is_text and re.match("_(?!_)", text) and text not in LOOKED_UP:
                private.append(f"{path.name}:{node.lineno}: {text}")
    assert private == []


# A file is one idea and fits in the head. These are longer, for these reasons.
LONGEST = 300
LONGER = {
    "_tensor.py": "one class, with every method and attribute of a tensor that it answers itself",
    "_writes_tables.py": "tables of names, one name a line",
}


def test_files_are_short():
    """A longer one is listed with its reason, and the list names no other."""
    lines = {path.name: path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert {name for name, count in lines.items() if count > LONGEST} == set(LONGER)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_loose_ends(path):
    """Nothing is left to be done later."""
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("TODO", "FIXME", "XXX") if word in text]
