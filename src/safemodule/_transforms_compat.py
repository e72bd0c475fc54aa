"""Where `torch.func` takes a tensor out of Python's sight; private names of torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any

from safemodule._compat import transforms_active

if TYPE_CHECKING:
    from collections.abc import Callable

# The functions that wrap an argument of a transform, in the modules that call them. They strip the
# subclass, and nothing of it arrives in `__torch_function__`. (torch/_functorch/vmap.py,
# torch/_functorch/eager_transforms.py)
_WRAPPERS = (
    ("torch._functorch.vmap", "_add_batch_dim"),
    ("torch._functorch.eager_transforms", "_wrap_for_grad"),
    ("torch._functorch.eager_transforms", "_wrap_functional_tensor"),
    ("torch.autograd.forward_ad", "make_dual"),
)


# Runs a block as if no transform were active: a copy made at a level of one would belong to it.
# (torch/_functorch/pyfunctorch.py)
outside_transforms: Any = getattr(
    importlib.import_module("torch._functorch.pyfunctorch"),
    "temporarily_clear_interpreter_stack",
    contextlib.nullcontext,
)


def before_transforms(kind: type, prepare: Callable[[Any], None]) -> None:
    """Call `prepare` with each tensor of class `kind` that a transform is about to wrap.

    Where torch has moved a name, that transform goes unprotected, and a write is found when the
    guarded call ends.
    """
    for module_name, name in _WRAPPERS:
        try:
            module: Any = importlib.import_module(module_name)
            wrap: Any = getattr(module, name)
        except (ImportError, AttributeError):
            continue
        setattr(module, name, _prepared(wrap, kind, prepare))


def _prepared(wrap: Any, kind: type, prepare: Callable[[Any], None]) -> Any:
    @functools.wraps(wrap)
    def wrapped(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if type(tensor) is kind and transforms_active():
            prepare(tensor)
        return wrap(tensor, *args, **kwargs)

    return wrapped
