"""What a tensor and a module are called. Searched for only when there is an error to explain."""

from __future__ import annotations

import ast
import gc
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from safemodule import _explain_compat as compat

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Models", "evaluate", "live_name", "share"]


def share(a: Any, b: Tensor) -> bool:
    """Tell whether two tensors share memory; False for anything that is no tensor."""
    if not isinstance(a, Tensor):
        return False
    try:
        return a is b or compat.storage_of(a) == compat.storage_of(b)
    except (RuntimeError, NotImplementedError):  # no storage: sparse, opaque
        return False


def live_name(tensor: Tensor, frames: list[FrameType]) -> str:
    """Return the name of a variable that is this tensor or a view of it.

    Args:
        tensor: The tensor.
        frames: Where to look, in this order. In one frame a tensor of the same shape wins, as other
            views of the memory say less.
    """
    with compat.interception_off():
        for user in frames:
            names = [
                (tuple(value.shape) != tuple(tensor.shape), order, name)
                for order, (name, value) in enumerate(list(user.f_locals.items()))
                if share(value, tensor) and name.isidentifier()
            ]
            if names:
                return min(names)[2]
    return ""


class Models:
    """The modules that an error may be about.

    Args:
        frames: The user's frames on the stack. Modules in their variables, and in attributes of
            their variables, are known.
        module: The module that ran. If no known module contains it, all objects are searched.
    """

    def __init__(self, frames: list[FrameType], module: nn.Module | None = None) -> None:
        self._roots = list(_modules_of(frames))
        if module is not None and _longest(self._roots, module)[0] is module:
            # A third of a second for a million objects, where there is an error to explain anyway.
            self._roots += [
                thing
                for thing in gc.get_objects()
                # type(), as isinstance() asks proxies, and some import a package to answer.
                if issubclass(type(thing), nn.Module) and "_modules" in thing.__dict__
            ]

    def describe(self, module: nn.Module) -> str:
        """Return path and class of a module, such as ``decoder.step (Step)``.

        The path is the one in the largest model that contains it.
        """
        path = _longest(self._roots, module)[1]
        return f"{path} ({type(module).__name__})" if path else type(module).__name__

    def owner(self, tensor: Tensor) -> tuple[str, str, str]:
        """Return kind, path and model of a parameter or buffer that shares memory with a tensor.

        For example ``("parameter", "decoder.q.weight", "Net")``; three times ``""`` for none.
        """
        seen: set[int] = set()
        for root in self._roots:
            for owner in root.modules():
                if id(owner) in seen:
                    continue
                seen.add(id(owner))
                for kind, table in (("parameter", "_parameters"), ("buffer", "_buffers")):
                    for name, value in owner.__dict__.get(table, {}).items():
                        if share(value, tensor):
                            model, path = _longest(self._roots, owner)
                            return kind, f"{path}.{name}" if path else name, type(model).__name__
        return "", "", ""


def _modules_of(frames: list[FrameType]) -> Iterator[nn.Module]:
    seen: set[int] = set()
    scopes = [frame.f_locals for frame in frames]
    scopes += [frame.f_globals for frame in frames]
    for scope in scopes:
        for value in list(scope.values()):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if issubclass(type(value), nn.Module):
                yield value
            elif not isinstance(value, (type, ModuleType)):
                # A trainer holds its model.
                held = list(getattr(value, "__dict__", {}).values())
                yield from (inner for inner in held if issubclass(type(inner), nn.Module))


def _longest(roots: list[nn.Module], part: nn.Module) -> tuple[nn.Module, str]:
    """Return the model that contains a module, and the module's path in it."""
    best = (part, "")
    for root in roots:
        for path, module in root.named_modules():
            if module is part and _depth(path) > _depth(best[1]):
                best = (root, path)
    return best


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def evaluate(expression: str, frame: FrameType) -> Any:
    """Return the value of a name, an attribute or an item in a frame; None if it has none.

    Only what the source shows is read: no call is made, apart from properties and `__getitem__`.
    """
    try:
        return _value(ast.parse(expression, mode="eval").body, frame)
    except Exception:  # noqa: BLE001  a property of the user's may raise anything
        return None


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        scope = frame.f_locals if node.id in frame.f_locals else frame.f_globals
        return scope[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript):
        whole = _value(node.value, frame)
        # A view of a tensor stands for it, whatever the index.
        return whole if isinstance(whole, Tensor) else whole[_index(node.slice, frame)]
    raise ValueError(ast.dump(node))


def _index(node: ast.expr, frame: FrameType) -> Any:
    return _value(node, frame) if isinstance(node, ast.Name) else ast.literal_eval(node)
