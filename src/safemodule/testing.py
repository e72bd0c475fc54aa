"""For tests: does a module leave its inputs as they were?

`assert_inputs_unchanged` compares the inputs themselves before and after, so it also sees what
bypasses PyTorch's Python layer: C++ extensions, numpy, raw memory.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from safemodule._snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["assert_inputs_unchanged"]


def assert_inputs_unchanged(module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a module and assert that everything reachable from its inputs is what it was.

    Compared are, for each tensor: values (NaN equals itself), shape, strides, offset, dtype, device,
    layout, flags, version and graph; for each container its type, keys and items, for any other
    object its attributes, for an array of numpy values, shape, strides and flags. Inputs that are
    modules, functions or classes are taken as they are.

    Args:
        module: A module, or any function.
        *args: Its inputs.
        **kwargs: Its inputs by name.

    Returns:
        What it returns.

    Raises:
        AssertionError: If an input has changed; the text names the argument and what changed.

    Example:
        >>> import torch
        >>> from safemodule.testing import assert_inputs_unchanged
        >>> x = torch.tensor([-1.0, 1.0])
        >>> assert_inputs_unchanged(torch.nn.ReLU(), x)
        tensor([0., 1.])
        >>> assert_inputs_unchanged(torch.nn.ReLU(inplace=True), x)
        Traceback (most recent call last):
            ...
        AssertionError: ReLU changed its inputs:
          input: values differ at 1 of 2 places, first at [0]: -1.0 -> 0.0
          input: version 0 -> 1
    """
    before = Snapshot(_named(module, args, kwargs))
    out = module(*args, **kwargs)
    changes = before.changes()
    if changes:
        name = getattr(module, "__qualname__", None) or type(module).__qualname__
        raise AssertionError("\n  ".join((f"{name} changed its inputs:", *changes)))
    return out


def _named(
    module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the inputs by the names of their parameters."""
    call = getattr(module, "forward", module)
    try:
        signature = inspect.signature(call)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # no signature, or the call will fail by itself
        return {f"args[{i}]": value for i, value in enumerate(args)} | kwargs
    named: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}[{i}]": item for i, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named
