"""Where torch takes a tensor out of Python's sight; private names of torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any

from safemodule._compat import transforms_active
from safemodule._import_hook import when_imported

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


# Every collective asks these for its tensors, by the name of the argument, before anything else.
# (torch/distributed/distributed_c10d.py)
_CHECKS = ("_check_single_tensor", "_check_tensor_list")


def before_collectives(kind: type, prepare: Callable[[Any], None]) -> None:
    """Call `prepare` with each tensor of class `kind` that a collective is given.

    Newer versions of torch route collectives through `__torch_function__`, and nothing is done.
    """

    def install(c10d: Any) -> None:
        if hasattr(c10d, "has_torch_function"):
            return
        for name in _CHECKS:
            check = getattr(c10d, name, None)
            if check is not None:
                setattr(c10d, name, _checked(check, kind, prepare))

    when_imported("torch.distributed.distributed_c10d", install)


def _checked(check: Any, kind: type, prepare: Callable[[Any], None]) -> Any:
    @functools.wraps(check)
    def checked(given: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in given if isinstance(given, (list, tuple)) else (given,):
            if type(tensor) is kind:
                prepare(tensor)
        return check(given, *args, **kwargs)

    return checked
