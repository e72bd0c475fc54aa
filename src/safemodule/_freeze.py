"""`freeze`: the same protection for a local variable."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch

from safemodule._call import must_clone, ordinary
from safemodule._compile import compiled_tensor
from safemodule._location import locate
from safemodule._modes import effective
from safemodule._state import Plan, handle_and_root
from safemodule._tensor import FrozenTensor, make_handle

_T = TypeVar("_T", bound=torch.Tensor)


def freeze(tensor: _T, *, name: str | None = None) -> _T:
    """Return a tensor of the same values whose in-place writes go to a private copy.

    Use it for a local variable that is written after autograd has used it. The tensor given stays
    as it is, and what autograd saved keeps its value, so ``backward()`` works.

    Args:
        tensor: Any strided tensor, of any shape, dtype and device. Other layouts and subclasses
            are cloned at once.
        name: What to call it in records. Default: the place where it was frozen.

    Returns:
        A tensor that shares memory and graph with ``tensor`` until it is written.

    Raises:
        TypeError: If ``tensor`` is no tensor.

    Example:
        >>> import torch
        >>> from safemodule import freeze
        >>> w = torch.ones(3, requires_grad=True)
        >>> t = freeze(w.exp())
        >>> y = (t * t).sum()  # autograd saves t
        >>> t[:] = 3.0
        >>> y.backward()
        >>> w.grad
        tensor([14.7781, 14.7781, 14.7781])
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"freeze takes a tensor, not {type(tensor).__name__}")
    if torch.compiler.is_compiling():
        return cast("_T", compiled_tensor(tensor))
    if effective(None) == "off":
        return tensor
    known: Any = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FrozenTensor)
    if must_clone() or type(tensor) not in known or not ordinary(tensor):
        return cast("_T", tensor.clone())
    where = locate()
    plan = Plan(
        name=f"{where.module}.{where.function}" if where.module else where.function,
        positional=(),
        parameters=frozenset(),
        variadic="args",
        keywords=None,
        mutable=frozenset(),
        mode=None,
        snapshot=False,
        chained=False,
        where=where,
    )
    handle = make_handle(tensor, plan, None, name or f"<frozen at line {where.lineno}>")
    handle_and_root(handle)[1].over = True  # no call of its own whose end would make it plain
    return handle
