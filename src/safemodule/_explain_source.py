"""What the source says: which expression was saved, which was written. Read only for an error.

A place (code, offset) gives the range of one call or operator, so the expression is exact even
where a line holds several. Nothing is executed.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

import torch
from torch.nn import functional

from safemodule._explain_frames import Place, Span, span

__all__ = [
    "definition_line",
    "is_argument",
    "last_binding",
    "saved_by_function",
    "saved_expression",
    "spelling",
    "written_expression",
]

_NODES: Final = (ast.Call, ast.BinOp, ast.AugAssign, ast.Subscript, ast.UnaryOp, ast.Compare)

_Node = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript | ast.UnaryOp | ast.Compare

# What derivatives call the first and the second operand, whatever Python calls them.
_FIRST: Final = frozenset({"self", "input", "mat1", "mat", "batch1", "vec1", "x", "tensors"})
_SECOND: Final = frozenset({"other", "mat2", "vec", "vec2", "batch2", "weight", "exponent"})

_LONGEST: Final = 40

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


def saved_expression(place: Place, op: str, argument: str) -> str:
    """Return the expression that an op saved, such as ``mask``; ``""`` if it is not a variable.

    Args:
        place: Where the op was called.
        op: Its name, such as ``"masked_fill"``.
        argument: Which of its tensors, in PyTorch's words: ``"mask"``, ``"self"``, ``"result"``.
    """
    tree = _tree(place)
    node = _node(tree, span(place))
    if tree is None or node is None:
        return ""
    if argument.startswith("result"):
        return _text(_target_of(tree, node, op))
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.Compare)):
        return _text(_operand(node, argument))
    if isinstance(node, ast.UnaryOp):
        return _text(node.operand)
    if isinstance(node, ast.Subscript):
        return _text(node.slice if argument.startswith("ind") else node.value)
    if isinstance(node, ast.Call):
        return _text(_call_argument(tree, node, argument))
    return ""


def written_expression(place: Place) -> str:
    """Return the expression that is written at a place, such as ``mask`` of ``mask[0] = True``."""
    node = _node(_tree(place), span(place))
    if isinstance(node, ast.AugAssign):
        return _text(_whole(node.target))
    if isinstance(node, ast.Subscript):
        return _text(node.value)
    if not isinstance(node, ast.Call):
        return ""
    for keyword in node.keywords:
        if keyword.arg == "out":
            return _text(keyword.value)
    method = _name(node.func)
    if isinstance(node.func, ast.Attribute) and method.endswith("_") and method != "_":
        return _text(_whole(node.func.value))
    # relu(x, inplace=True), self.relu(x), normalise(x)
    return _text(node.args[0]) if node.args and method != "step" else ""


def spelling(place: Place) -> str:
    """Return how a write at a place is spelled: ``add_``, ``+=``, ``item assignment``, a call."""
    node = _node(_tree(place), span(place))
    if isinstance(node, ast.Subscript):
        return "item assignment"
    if isinstance(node, ast.AugAssign):
        if _whole(node.target) is not node.target:
            return "item assignment"
        return f"{_SYMBOLS.get(type(node.op), '')}="
    if not isinstance(node, ast.Call):
        return ""
    name = _name(node.func)
    if any(keyword.arg == "out" for keyword in node.keywords):
        return f"{name}(out=...)"
    if isinstance(node.func, ast.Attribute) and name.endswith("_"):
        return name
    text = ast.unparse(node.func)
    return f"{text}(...)" if len(text) <= _LONGEST else f"{name}(...)"


def is_argument(code: CodeType, name: str) -> bool:
    """Tell whether a name is a parameter of a function, never bound to something else in it."""
    count = code.co_argcount + code.co_kwonlyargcount
    if name not in code.co_varnames[:count]:
        return False
    before = ""
    for step in dis.get_instructions(code):
        # `x += 1` stores what it was: a tensor writes itself.
        if step.opname == "STORE_FAST" and step.argval == name and not before.endswith("="):
            return False
        before = step.argrepr if step.opname == "BINARY_OP" else ""
    return True


def last_binding(code: CodeType, name: str, before: int) -> int | None:
    """Return the last line above `before` that binds `name` in a function, such as ``y = x[:1]``.

    A line that turns it into a leaf, ``y.requires_grad_()``, counts as well.
    """
    tree = _file(code.co_filename)
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
    tree = _file(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.lineno
    return code.co_firstlineno


def saved_by_function(forward: Any, position: int) -> str:
    """Return the expression that a custom Function gives to `save_for_backward` at a position."""
    try:
        code = inspect.unwrap(forward).__code__
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, AttributeError):
        return ""
    tree = _file(code.co_filename)
    if tree is None:
        return ""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and _name(node.func) == "save_for_backward"
            and first <= node.lineno < first + len(lines)
            and position < len(node.args)
            and not any(isinstance(arg, ast.Starred) for arg in node.args)
        ):
            return _text(node.args[position])
    return ""


def _binds(node: ast.AST, name: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.For, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and _name(node.func) == "requires_grad_":
        assert isinstance(node.func, ast.Attribute)
        return _text(node.func.value) == name
    return any(
        isinstance(item, (ast.Name, ast.Attribute))
        and isinstance(item.ctx, ast.Store)
        and ast.unparse(item) == name
        for target in targets
        for item in ast.walk(target)
    )


def _tree(place: Place) -> ast.Module | None:
    return _file(place.code.co_filename) if place.code is not None else None


def _file(filename: str) -> ast.Module | None:
    linecache.checkcache(filename)
    return _parse("".join(linecache.getlines(filename)))


@functools.lru_cache(maxsize=32)
def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source) if source else None
    except (SyntaxError, ValueError):  # a notebook cell with magics, a template
        return None


def _node(tree: ast.Module | None, at: Span | None) -> ast.AST | None:
    """Return the node of an instruction: exactly its range, else the largest that ends with it."""
    if tree is None or at is None:
        return None
    best: ast.AST | None = None
    for node in _ends(tree).get((at.end_line, at.end_column), ()):
        if (node.lineno, node.col_offset) == (at.line, at.column):
            return node
        # In a chain over several lines the range of a call starts at the name of the method.
        if isinstance(node, ast.Call) and node.lineno <= at.line:
            best = best or node
    return best


@functools.lru_cache(maxsize=8)
def _ends(tree: ast.Module) -> dict[tuple[int, int], list[_Node]]:
    """Return the calls, operators and items of a file by the place where they end."""
    found: dict[tuple[int, int], list[_Node]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _NODES):
            found.setdefault((node.end_lineno or 0, node.end_col_offset or 0), []).append(node)
    return found


def _text(node: ast.AST | None) -> str:
    """Return the source of something that has a name: a variable, an attribute, an item."""
    base = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    if not isinstance(base, ast.Name) or node is None:
        return ""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else ""


def _whole(node: ast.expr) -> ast.expr:
    """Return the tensor of ``x[:, 2:]``; an item by a plain key or number may be of a container."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Slice, ast.Tuple)):
        return _whole(node.value)
    return node


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _operand(node: ast.BinOp | ast.AugAssign | ast.Compare, argument: str) -> ast.expr | None:
    if isinstance(node, ast.AugAssign):
        left, right = node.target, node.value
    elif isinstance(node, ast.BinOp):
        left, right = node.left, node.right
    else:
        left, right = node.left, node.comparators[0]
    if argument not in _FIRST | _SECOND:
        return None
    wanted, other = (left, right) if argument in _FIRST else (right, left)
    return other if isinstance(wanted, ast.Constant) else wanted  # 2 * x is x.__rmul__(2)


def _call_argument(tree: ast.Module, call: ast.Call, argument: str) -> ast.expr | None:
    """Return what a call passes as the argument that PyTorch calls by a name."""
    method = _name(call.func)
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    given = list(call.args)
    if receiver is not None and hasattr(torch.Tensor, method) and not _is_module(tree, receiver):
        given.insert(0, receiver)
        names = _schema_names(method)
    elif receiver is None or _is_module(tree, receiver):
        names = _parameter_names(method) or _schema_names(method)
    else:  # a module or a function of the user: its first argument is the usual one
        names = ()
    for keyword in call.keywords:
        if keyword.arg == argument:
            return keyword.value
    if argument in names:
        position = names.index(argument)
    elif argument in _FIRST:
        position = 0
    elif argument in _SECOND and names:
        position = 1
    else:
        return None
    return given[position] if position < len(given) else None


@functools.cache
def _schema_names(op: str) -> tuple[str, ...]:
    """Return the argument names of an operator; those of the overload with the most tensors."""
    packet = getattr(torch.ops.aten, op, None)
    best: tuple[str, ...] = ()
    most = -1
    for overload in packet.overloads() if packet is not None else ():
        arguments = getattr(packet, overload)._schema.arguments
        tensors = sum("Tensor" in str(arg.type) for arg in arguments if not arg.kwarg_only)
        if tensors > most:
            most = tensors
            best = tuple(arg.name for arg in arguments if not arg.kwarg_only)
    return best


@functools.cache
def _parameter_names(function: str) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(getattr(functional, function)).parameters)
    except (AttributeError, TypeError, ValueError):
        return ()


def _is_module(tree: ast.Module, node: ast.expr) -> bool:
    """Tell whether an expression is an imported module: `torch`, `F`, `nn.functional`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _imported(tree)


@functools.lru_cache(maxsize=8)
def _imported(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )


def _target_of(tree: ast.Module, node: ast.AST, op: str) -> ast.AST | None:
    """Return the name that the result of an expression is bound to."""
    if isinstance(node, ast.Call):
        if _name(node.func).replace("_", "") != op.replace("_", ""):
            return None  # a module, say: what it saved need not be what it returned
        if _name(node.func).endswith("_") and isinstance(node.func, ast.Attribute):
            return node.func.value
    if isinstance(node, ast.AugAssign):
        return node.target
    for statement in _statements(tree):
        if statement.value is node:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            return None if isinstance(target, (ast.Tuple, ast.List)) else target
    return None


def _statements(tree: ast.Module) -> Iterator[ast.Assign | ast.AnnAssign | ast.NamedExpr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            yield node
