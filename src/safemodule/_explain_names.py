"""What a tensor and a module are called. Searched for only when there is an error to explain."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor, nn

from safemodule import _explain_compat as compat
from safemodule._explain_frames import user_frames

__all__ = ["live_name", "module_path", "parameter_name", "share"]


def share(a: Any, b: Tensor) -> bool:
    """Tell whether two tensors share memory; False for anything that is no tensor."""
    if not isinstance(a, Tensor):
        return False
    try:
        return a is b or compat.storage_of(a) == compat.storage_of(b)
    except (RuntimeError, NotImplementedError):  # no storage: sparse, opaque
        return False


def live_name(tensor: Tensor, frame: FrameType | None) -> str:
    """Return the name of a variable, on the stack, that is this tensor or a view of it.

    The innermost of the user's frames that has one wins; there, one of the same shape, as other
    views of the memory say less.
    """
    for user in user_frames(frame):
        names = [
            (value is not tensor, tuple(value.shape) != tuple(tensor.shape), order, name)
            for order, (name, value) in enumerate(list(user.f_locals.items()))
            if share(value, tensor) and name.isidentifier()
        ]
        if names:
            return min(names)[3]
    return ""


def module_path(module: nn.Module) -> str:
    """Return what a module is called in the model it belongs to, such as ``decoder.step``.

    The model is the largest that contains it; ``""`` if it is part of no other.
    """
    paths = (_path(root, module) for root in _modules())
    return max(paths, key=lambda path: path.count(".") + bool(path), default="")


def parameter_name(tensor: Tensor) -> tuple[str, str, str]:
    """Return kind, path and model of a parameter or buffer that shares memory with a tensor.

    For example ``("parameter", "decoder.q.weight", "Net")``; three times ``""`` if there is none.
    """
    found = ("", "", "")
    for owner in _modules():
        for kind, table in (("parameter", "_parameters"), ("buffer", "_buffers")):
            for name, value in owner.__dict__.get(table, {}).items():
                if share(value, tensor):
                    for root in _modules():
                        path = ".".join(filter(None, (_path(root, owner), name)))
                        if (root is owner or path != name) and path.count(".") >= found[1].count("."):
                            found = (kind, path, type(root).__name__)
    return found


def _modules() -> Iterator[nn.Module]:
    for thing in gc.get_objects():
        # type(), as isinstance() asks proxies, and some import a package to answer.
        if issubclass(type(thing), nn.Module) and "_modules" in thing.__dict__:
            yield thing


def _path(root: nn.Module, module: nn.Module) -> str:
    for name, part in root.named_modules():
        if part is module:
            return name
    return ""
