"""`Mutable[T]`: a parameter that the function is meant to write."""

from __future__ import annotations

import inspect
import sys
import typing
from typing import Annotated, Any, Final, TypeVar

_T = TypeVar("_T")


class _MutableMark:
    __slots__ = ()

    def __repr__(self) -> str:
        return "safemodule.Mutable"


MARK: Final = _MutableMark()
Mutable = Annotated[_T, MARK]
"""Declare a parameter that may be written: it arrives as it is, unguarded.

To type checkers ``Mutable[T]`` is ``T``.

Example:
    >>> import torch
    >>> from safemodule import Mutable, freeze_inputs
    >>> @freeze_inputs
    ... def append(cache: Mutable[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    ...     return cache.add_(x)
    >>> cache = torch.zeros(2)
    >>> _ = append(cache, torch.ones(2))
    >>> cache
    tensor([1., 1.])
"""


def declared_mutable(
    func: Any, parameters: tuple[str, ...], mutable: tuple[str, ...]
) -> frozenset[str]:
    """Return the names that a function declares mutable, by annotation and by `mutable=`.

    Raises:
        ValueError: If a name is no parameter.
    """
    for name in mutable:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise ValueError(
                f"mutable={name!r} is no parameter of {getattr(func, '__qualname__', func)}; "
                f"its parameters are: {known}"
            )
    annotated = (
        name
        for name, annotation in _annotations(func).items()
        if name in parameters and _is_marked(annotation, func)
    )
    return frozenset((*mutable, *annotated))


def _annotations(func: Any) -> dict[str, Any]:
    return dict(getattr(inspect.unwrap(func), "__annotations__", {}))


def _is_marked(annotation: Any, func: Any) -> bool:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, inspect.unwrap(func))
    if typing.get_origin(annotation) is Annotated:
        return MARK in annotation.__metadata__ or _is_marked(annotation.__origin__, func)
    # Optional[Mutable[T]] and the like.
    parts = (part for part in typing.get_args(annotation) if not isinstance(part, str))
    return any(_is_marked(part, func) for part in parts)


def _evaluated(annotation: str, func: Any) -> Any:
    """Evaluate one annotation, in the function's module and closure.

    Names that only type checkers import are unknown here; what is written `Mutable[...]` counts.
    """
    module = sys.modules.get(getattr(func, "__module__", ""), None)
    scope = {**vars(typing), **getattr(module, "__dict__", {}), **getattr(func, "__globals__", {})}
    try:
        closure = inspect.getclosurevars(func).nonlocals
        return eval(annotation, scope, dict(closure))  # noqa: S307 -- as typing.get_type_hints
    except Exception:  # noqa: BLE001 -- any error of evaluating somebody's annotation
        name = annotation.split("[", 1)[0].rsplit(".", 1)[-1].strip()
        return Annotated[object, MARK] if name == "Mutable" else object
