"""Which expression of the source an operation saved: ``mask`` of ``x.masked_fill(mask, 0)``.

PyTorch calls what it saves by the argument names of its operators; a call says the same by position
or keyword. Where the two cannot be matched for sure, the answer is ``""``.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from safemodule import _explain_compat as compat
from safemodule._explain_syntax import file_tree, name_of, node_at, text_of, tree_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from safemodule._explain_frames import Place

__all__ = ["saved_by_function", "saved_expression"]

# What derivatives call the first and the second operand, whatever Python calls them.
_FIRST: Final = frozenset({"self", "input", "mat1", "mat", "batch1", "vec1", "x", "tensors"})
_SECOND: Final = frozenset({"other", "mat2", "vec", "vec2", "batch2", "weight", "exponent"})


def saved_expression(place: Place, op: str, argument: str) -> str:
    """Return the expression that an op saved, such as ``mask``; ``""`` if it is not a variable.

    Args:
        place: Where the op was called.
        op: Its name, such as ``"masked_fill"``.
        argument: Which of its tensors, in PyTorch's words: ``"mask"``, ``"self"``, ``"result"``.
    """
    tree = tree_at(place)
    node = node_at(place)
    if tree is None or node is None:
        return ""
    if argument.startswith("result"):
        return text_of(_target_of(tree, node, op))
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.Compare)):
        return text_of(_operand(node, argument))
    if isinstance(node, ast.UnaryOp):
        return text_of(node.operand)
    if isinstance(node, ast.Subscript):
        return text_of(node.slice if argument.startswith("ind") else node.value)
    return text_of(_call_argument(tree, node, argument))


def saved_by_function(forward: Any, position: int) -> str:
    """Return the expression that a custom Function gives to `save_for_backward` at a position."""
    try:
        code = inspect.unwrap(forward).__code__
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, AttributeError):
        return ""
    tree = file_tree(code.co_filename)
    if tree is None:
        return ""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and name_of(node.func) == "save_for_backward"
            and first <= node.lineno < first + len(lines)
            and position < len(node.args)
            and not any(isinstance(arg, ast.Starred) for arg in node.args)
        ):
            return text_of(node.args[position])
    return ""


def _operand(node: ast.BinOp | ast.AugAssign | ast.Compare, argument: str) -> ast.expr | None:
    left: ast.expr
    right: ast.expr
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
    method = name_of(call.func)
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
        arguments = compat.schema_of(getattr(packet, overload)).arguments
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
        if name_of(node.func).replace("_", "") != op.replace("_", ""):
            return None  # a module, say: what it saved need not be what it returned
        if name_of(node.func).endswith("_") and isinstance(node.func, ast.Attribute):
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
