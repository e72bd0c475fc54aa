"""What the source says about a write: what is written, how it is spelled, where it was bound.

A place (code, offset) gives the range of one call or operator, so the expression is exact even
where a line holds several.
"""

from __future__ import annotations

import ast
import dis
from typing import TYPE_CHECKING, Final

from safemodule._explain_syntax import file_tree, name_of, node_at, text_of, whole_of

if TYPE_CHECKING:
    from types import CodeType

    from safemodule._explain_frames import Place

__all__ = [
    "definition_line",
    "is_argument",
    "last_binding",
    "spelling",
    "written_expression",
]

_CALL_LONGEST: Final = 40

_SYMBOLS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


def written_expression(place: Place) -> str:
    """Return the expression that is written at a place, such as ``mask`` of ``mask[0] = True``."""
    node = node_at(place)
    if isinstance(node, ast.AugAssign):
        return text_of(whole_of(node.target))
    if isinstance(node, ast.Subscript):
        return text_of(node.value)
    if not isinstance(node, ast.Call):
        return ""
    for keyword in node.keywords:
        if keyword.arg == "out":
            return text_of(keyword.value)
    method = name_of(node.func)
    if isinstance(node.func, ast.Attribute) and method.endswith("_") and method != "_":
        return text_of(whole_of(node.func.value))
    # A function or a module: `relu(x, inplace=True)` and the like write what comes first.
    return text_of(node.args[0]) if node.args and method != "step" else ""


def spelling(place: Place) -> str:
    """Return how a write at a place is spelled: ``add_``, ``+=``, ``item assignment``, a call."""
    node = node_at(place)
    if isinstance(node, ast.Subscript):
        return "item assignment"
    if isinstance(node, ast.AugAssign):
        if whole_of(node.target) is not node.target:
            return "item assignment"
        return f"{_SYMBOLS.get(type(node.op), '')}="
    if not isinstance(node, ast.Call):
        return ""
    name = name_of(node.func)
    if any(keyword.arg == "out" for keyword in node.keywords):
        return f"{name}(out=...)"
    if isinstance(node.func, ast.Attribute) and name.endswith("_"):
        return name
    text = ast.unparse(node.func)
    return f"{text}(...)" if len(text) <= _CALL_LONGEST else f"{name}(...)"


def is_argument(code: CodeType, name: str) -> bool:
    """Tell whether a name is a parameter of a function, never bound to something else in it."""
    count = code.co_argcount + code.co_kwonlyargcount
    if name not in code.co_varnames[:count]:
        return False
    before = ""
    for step in dis.get_instructions(code):
        # Python 3.13 joins two of them: STORE_FAST_STORE_FAST, STORE_FAST_LOAD_FAST.
        if step.opname.startswith("STORE_FAST"):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            stored = names[: step.opname.count("STORE")]
            # `x += 1` stores what it was: a tensor writes itself.
            if name in stored and not (stored[0] == name and before.endswith("=")):
                return False
        before = step.argrepr if step.opname == "BINARY_OP" else ""
    return True


def last_binding(code: CodeType, name: str, before: int) -> int | None:
    """Return the last line above `before` that binds `name` in a function, such as ``y = x[:1]``.

    A line that turns it into a leaf, ``y.requires_grad_()``, counts as well.
    """
    tree = file_tree(code.co_filename)
    if tree is None:
        return None
    first = 0 if code.co_name == "<module>" else code.co_firstlineno
    found: int | None = None
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if first <= line < before and (found is None or line > found) and _binds(node, name):
            found = line
    return found


def definition_line(code: CodeType) -> int:
    """Return the line of a function's `def`, below its decorators."""
    tree = file_tree(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.lineno
    return code.co_firstlineno


def _binds(node: ast.AST, name: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.For, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and name_of(node.func) == "requires_grad_":
        assert isinstance(node.func, ast.Attribute)
        return text_of(node.func.value) == name
    return any(
        isinstance(item, (ast.Name, ast.Attribute))
        and isinstance(item.ctx, ast.Store)
        and ast.unparse(item) == name
        for target in targets
        for item in ast.walk(target)
    )
