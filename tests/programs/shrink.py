"""Makes a failing program small: takes statements and expressions out while it goes on failing."""

from __future__ import annotations

import ast
import copy
import re

from tests.programs.check import Program


def shrink(program, fails, most=3000):
    """Return a small program for which `fails(program)` is still true.

    Args:
        program: One that fails.
        fails: Tells whether a program fails in the way that is looked for. Programs that make no
            sense are given to it too.
        most: How many programs to try.
    """
    state = {"left": most}

    def smaller(part, make):
        changed = False
        tree = ast.parse(part)
        position = 0
        while state["left"] > 0:
            twin = copy.deepcopy(tree)
            edits = _edits(twin)
            if position >= len(edits):
                return ast.unparse(tree) + "\n", changed
            state["left"] -= 1
            edits[position]()
            try:
                text = ast.unparse(ast.fix_missing_locations(twin)) + "\n"
                good = text != ast.unparse(tree) + "\n" and fails(make(text))
            except (ValueError, AttributeError):
                good = False
            if good:
                tree, changed = twin, True
            else:
                position += 1
        return ast.unparse(tree) + "\n", changed

    best, changed = program, True
    while changed and state["left"] > 0:
        body, one = smaller(best.body, lambda text: Program(best.inputs, text))
        if one:
            best = Program(best.inputs, body)
        given, two = smaller(best.inputs, lambda text: Program(text, best.body))
        if two:
            best = Program(given, best.body)
        three = False
        for twin in _with_fewer_parameters(best):
            if fails(twin):
                best, three = twin, True
                break
        changed = one or two or three
    return best


def _with_fewer_parameters(program):
    """Yield the program without one of the parameters of forward."""
    names = re.search(r"def forward\(([^)]*)\)", program.body)[1].split(", ")
    given = [name for name in names if name != "self"]
    for name in given if len(given) > 1 else ():
        fewer = [n for n in given if n != name]
        body = re.sub(
            r"def forward\([^)]*\)",
            f"def forward({', '.join([n for n in names if n != name])})",
            program.body,
        )
        inputs = re.sub(r"args = .*", f"args = ({', '.join(fewer)},)", program.inputs)
        yield Program(inputs, body)


def _edits(tree):
    """Return the edits of a tree, large ones first; each changes it when it is called."""
    edits = []
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                edits += [
                    _removal(statements, i) for i in range(len(statements))[::-1]
                    if len(statements) > 1
                ]  # fmt: skip
                edits += [
                    _unfold(statements, i) for i, s in enumerate(statements)
                    if isinstance(s, (ast.With, ast.For))
                ]  # fmt: skip
    for node in ast.walk(tree):
        for name, old in ast.iter_fields(node):
            items = old if isinstance(old, list) else [old]
            for i, item in enumerate(items):
                if isinstance(item, ast.expr):
                    for new in _simpler(item):
                        edits.append(_replacement(node, name, i if items is old else None, new))
            if isinstance(node, (ast.Tuple, ast.List)) and name == "elts" and len(items) > 1:
                edits += [_removal(old, i) for i in range(len(items))]
            if isinstance(node, ast.Call) and name in ("args", "keywords"):
                edits += [_removal(old, i) for i in range(len(items))[::-1]]
    return edits


def _removal(items, i):
    return lambda: items.pop(i)


def _unfold(statements, i):
    return lambda: statements.__setitem__(slice(i, i + 1), statements[i].body)


def _replacement(node, name, i, new):
    if i is None:
        return lambda: setattr(node, name, new)
    return lambda: getattr(node, name).__setitem__(i, new)


def _simpler(node):
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name):
        return [node.value]
    if isinstance(node, ast.Call):
        found = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return found + [a for a in node.args if not isinstance(a, ast.Constant)]
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == 1:
        return [node.elts[0]]
    return []
