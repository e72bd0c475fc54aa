"""Every private name of torch that the mechanism uses, with its reason and what happens without it.

`CAN_SWAP` is the one that matters: without `torch._C._swap_tensor_impl` there is no redirect, and
guarded calls fall back to cloning their inputs on entry (same results, no sharing), with one
warning. Everything else has a fallback of its own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
import weakref
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

_C: Any = torch._C

# Runs one call with the interception of tensor subclasses off. It is what torch itself sets as
# `__torch_function__` on Parameter, and one C call where the public `DisableTorchFunctionSubclass`
# block costs an extra 0.2 us. (torch/csrc/utils/disable_torch_function.cpp)
_fallback_off = _C.DisableTorchFunctionSubclass


def _run_plain_slowly(
    func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
) -> Any:
    del types
    with _fallback_off():
        return func(*args, **(kwargs or {}))


run_plain: Any = getattr(_C, "_disabled_torch_function_impl", _run_plain_slowly)
interception_off: Any = _C.DisableTorchFunctionSubclass

# Exchanges the C++ halves of two Python tensors. `torch.utils.swap_tensors` is the public face; it
# refuses tensors that autograd or a Python weak reference holds, which is exactly where a redirect
# needs it. (torch/csrc/autograd/python_variable.cpp, used by torch/utils/__init__.py)
_swap: Any = getattr(_C, "_swap_tensor_impl", None)
CAN_SWAP: bool = _swap is not None


def swap(a: Tensor, b: Tensor) -> None:
    """Exchange the implementations of two tensors; raises RuntimeError if C++ holds a weak one."""
    _swap(a, b)


# Do two tensors share a storage? (torch/csrc/autograd/init.cpp: `_is_alias_of`)
def _is_alias_slowly(a: Tensor, b: Tensor) -> bool:
    try:
        with interception_off():
            return a.untyped_storage()._cdata == b.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # no storage: sparse, opaque
        return False


is_alias: Any = getattr(_C, "_is_alias_of", _is_alias_slowly)

# Sets the grad mode without the 1.5 us of `torch.set_grad_enabled` as a block.
set_grad_enabled: Any = getattr(_C, "_set_grad_enabled", torch.set_grad_enabled)

# A copy that shares the storage until one side writes (aten/src/ATen/native/TensorFactories.cpp,
# c10/core/impl/COW.h). None: a snapshot is a clone.
lazy_clone: Any = getattr(torch, "_lazy_clone", None)

# Under these a guarded call clones its inputs: the tracer sees ordinary operations.
_jit: Any = torch.jit
tracing_state: Any = getattr(_C, "_get_tracing_state", lambda: _jit.is_tracing() or None)
dispatch_modes: Any = getattr(_C, "_len_torch_dispatch_stack", lambda: 0)


def modes_only_watch() -> bool:
    """Tell whether the dispatch modes about are `explain()`'s, which change nothing."""
    modes: Any = _python_dispatch._get_current_dispatch_mode_stack()
    return all(getattr(mode, "only_watches", False) for mode in modes)


def saved_tensor_hooks() -> Any:
    """Return the innermost saved-tensor hooks, or None (torch/csrc/autograd/init.cpp)."""
    top: Any = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


def outside_modes() -> Any:
    """Return a block without any dispatch mode (torch/utils/_python_dispatch.py)."""
    block: Any = getattr(_python_dispatch, "_disable_current_modes", contextlib.nullcontext)
    return block()


transforms_active: Any = getattr(_C, "_are_functorch_transforms_active", lambda: False)


# Has the level of forward-mode AD as `_current_level`, which changes; -1: none is open. Without it,
# every alias is made as if one were. (torch/autograd/forward_ad.py)
forward_level: Any = (
    forward_ad if hasattr(forward_ad, "_current_level") else types.SimpleNamespace(_current_level=0)
)


def forward_ad_active() -> bool:
    """Tell whether a forward-mode level is open: an alias must then carry the tangent."""
    return forward_level._current_level >= 0


def context_class_of(function: Any) -> Any:
    """Return the class of a custom Function's contexts (torch/autograd/function.py), or None."""
    return getattr(function, "_backward_cls", None)


# Marks a value as overwritten, so that autograd refuses a stale use. (public since 2.1)
increment_version: Any = torch.autograd.graph.increment_version

# What a weak reference to a tensor gives must be told that Python owns it again: until torch kept a
# Python tensor alive by an owner count (2.6 for one), a tensor that only C++ kept was owned by its
# C++ half, and neither its use count nor an exchange is right then. Does nothing on newer torch.
# (torch/csrc/autograd/python_variable.cpp; torch/utils/weak.py calls it)
fix_weakref: Any = getattr(Tensor, "_fix_weakref", lambda _: None)

# How many C++ owners a storage has.
_storage_use_count: Any = getattr(_C, "_storage_Use_Count", None)


def storage_owners(tensor: Tensor) -> int:
    """Return how many tensors share the storage of `tensor` (interception must be off)."""
    storage = tensor.untyped_storage()
    return _storage_use_count(storage._cdata) - 1  # `storage`, made to ask, is one owner more


def owned_elsewhere(tensor: Any) -> bool:
    """Tell whether C++ code owns the tensor or its storage too (autograd, DLPack, a view)."""
    return _storage_use_count is None or tensor._use_count() > 1 or storage_owners(tensor) > 1


def _counts_tell() -> bool:
    """Tell whether use counts show what autograd saved, also of a view that Python has dropped.

    They do on every torch that has the counts, given `fix_weakref`. Asked by trying.
    """
    if _storage_use_count is None or not hasattr(Tensor, "_use_count"):
        return False
    with torch.inference_mode(mode=False), torch.enable_grad():
        base: Any = torch.zeros(2)
        weight = torch.ones(1, requires_grad=True)
        view = base[:1]
        probe = weakref.ref(view)
        product = view * weight  # saves the view
        del view
        kept: Any = probe()
        if kept is not None:  # pragma: no branch -- a torch where it dies with its last owner
            fix_weakref(kept)
        told = (
            kept is not None
            and kept._use_count() == 2
            and base._use_count() == 2
            and storage_owners(base) == 2
        )
        del product, kept
        return told and base._use_count() == 1 and storage_owners(base) == 1


# Asked at import (60 us), not at the first need, which may lie under saved-tensor hooks.
COUNTS_TELL: bool = _counts_tell()


@functools.cache
def warn_degraded() -> None:
    """Say once that this torch lacks what a redirect needs."""
    warnings.warn(
        f"safemodule: torch {torch.__version__} has no torch._C._swap_tensor_impl, so guarded calls "
        "clone their inputs on entry instead of on the first write",
        RuntimeWarning,
        stacklevel=2,
    )


def _alone() -> int:
    thing = object()
    return sys.getrefcount(thing)


# What `sys.getrefcount` says of an object that only a local variable holds: 2, and 1 where the
# interpreter lends local variables to calls (Python 3.14).
ALONE: int = _alone()

# Container types registered with torch's pytree. `SUPPORTED_NODES` maps a type to its node
# definition (flatten_fn, unflatten_fn). (torch/utils/_pytree.py)
_NODES: Any = getattr(pytree, "SUPPORTED_NODES", {})


def pytree_node(kind: type) -> Any:
    """Return the pytree node definition of a registered container type, or None."""
    return _NODES.get(kind)


def register_container(kind: type, flatten: Any, unflatten: Any) -> None:
    """Make pytree functions walk a guarded container as they walk the type it stands for."""
    try:
        pytree.register_pytree_node(kind, flatten, unflatten)
    except (TypeError, ValueError):  # registered already by the parent's `__init_subclass__`
        return
