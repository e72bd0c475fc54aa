"""The syntax tree of the user's source, and the node of one instruction in it.

Read only for an error; nothing is executed.
"""

from __future__ import annotations

import ast
import functools
import linecache
from typing import TYPE_CHECKING, Final

from safemodule._explain_frames import span

if TYPE_CHECKING:
    from safemodule._explain_frames import Place

__all__ = ["Node", "file_tree", "name_of", "node_at", "text_of", "tree_at", "whole_of"]

Node = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript | ast.UnaryOp | ast.Compare
_NODES: Final = (ast.Call, ast.BinOp, ast.AugAssign, ast.Subscript, ast.UnaryOp, ast.Compare)

# Methods and attributes that give a view of the tensor they belong to.
_VIEWS: Final = frozenset(
    [
        "T",
        "mT",
        "H",
        "mH",
        "data",
        "real",
        "imag",
        "detach",
        "view",
        "view_as",
        "t",
        "transpose",
        "permute",
        "squeeze",
        "unsqueeze",
        "narrow",
        "select",
        "expand",
        "unflatten",
        "diagonal",
        "unfold",
        "movedim",
        "swapaxes",
    ]
)

# Longer expressions are no names.
_LONGEST: Final = 40


def tree_at(place: Place) -> ast.Module | None:
    """Return the syntax tree of the file that a place is in."""
    return file_tree(place.code.co_filename) if place.code is not None else None


def file_tree(filename: str) -> ast.Module | None:
    """Return the syntax tree of a file, None if there is no source or it is no Python."""
    linecache.checkcache(filename)
    return _parse("".join(linecache.getlines(filename)))


@functools.lru_cache(maxsize=32)
def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source) if source else None
    except (SyntaxError, ValueError):  # a notebook cell with magics, a template
        return None


def node_at(place: Place) -> Node | None:
    """Return the node of an instruction: exactly its range, else the largest that ends with it."""
    tree, at = tree_at(place), span(place)
    if tree is None or at is None:
        return None
    best: Node | None = None
    for node in _ends(tree).get((at.end_line, at.end_column), ()):
        if (node.lineno, node.col_offset) == (at.line, at.column):
            return node
        # In a chain over several lines the range of a call starts at the name of the method.
        if isinstance(node, ast.Call) and node.lineno <= at.line:
            best = best or node
    return best


@functools.lru_cache(maxsize=8)
def _ends(tree: ast.Module) -> dict[tuple[int, int], list[Node]]:
    """Return the calls, operators and items of a file by the place where they end."""
    found: dict[tuple[int, int], list[Node]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _NODES):
            found.setdefault((node.end_lineno or 0, node.end_col_offset or 0), []).append(node)
    return found


def text_of(node: ast.AST | None) -> str:
    """Return the source of something that has a name: a variable, an attribute, an item."""
    base = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    if not isinstance(base, ast.Name) or node is None:
        return ""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else ""


def whole_of(node: ast.expr) -> ast.expr:
    """Return the tensor of ``x[:, 2:]``, ``x.data``, ``x.view(3)``.

    An item by a plain key or number is left as it is: it may be one of a container.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Slice, ast.Tuple)):
        return whole_of(node.value)
    if isinstance(node, ast.Attribute) and node.attr in _VIEWS:
        return whole_of(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = whole_of(node.func)
        return node if inner is node.func else inner
    return node


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name: ``relu`` of ``F.relu``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
