"""A guarded call that is being compiled: inputs are cloned, and nothing else happens.

The compiler makes writes functional and drops the clones that nobody writes: copy-on-write for free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from safemodule._state import Plan


def compiled_inputs(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return clones of the arguments that may not be written."""
    names = plan.positional
    cloned = [
        arg if i < len(names) and names[i] in plan.mutable else _clone(arg)
        for i, arg in enumerate(args)
    ]
    named = {name: arg if name in plan.mutable else _clone(arg) for name, arg in kwargs.items()}
    return tuple(cloned), named


def _clone(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.clone()
    if type(x) is dict:
        return {key: _clone(value) for key, value in x.items()}
    if type(x) is list:
        return [_clone(value) for value in x]
    if type(x) is tuple:
        return tuple([_clone(value) for value in x])
    return x
