"""The private names of torch that `explain()` uses, each with its reason and what happens without.

Apart from `_compat` because nothing of it is needed by a guarded call.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch

_C: Any = torch._C
_autograd: Any = getattr(_C, "_autograd", None)

# The only way to see every write, those of C++ and of optimisers included. The class is documented
# as public in spirit; there is no other name for it. (torch/utils/_python_dispatch.py)
DispatchMode: Any = _python_dispatch.TorchDispatchMode

# The address of a storage: what tells which tensors share memory, in 0.1 us.
# (torch/csrc/DynamicTypes.cpp: `_storage_address`)
_storage_address: Any = getattr(_C, "_storage_address", None)


def _storage_address_slowly(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


storage_of: Any = _storage_address or _storage_address_slowly


def runner(func: Any) -> Any:
    """Return what an operation calls, to save the call of `OpOverload` itself: 0.2 us."""
    return func._op if type(func) is torch._ops.OpOverload else func


# Writes are counted by a kernel of the key ADInplaceOrView, which runs above a dispatch mode and is
# off below it. Operations that have no such kernel (`_foreach_add_`, extensions) are counted by
# what they are made of: for those the key must be on again, or the mode would hide their writes
# from autograd. (torch/csrc/autograd/ADInplaceOrViewTypeManual.cpp, c10/core/impl/LocalDispatchKeySet.h)
_COUNTING: Any = _C.DispatchKey.ADInplaceOrView


def counts_writes(func: Any) -> bool:
    """Tell whether an operation has a kernel of its own that counts its writes."""
    return _C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView")


def counting() -> Any:
    """Return a block in which the operations that others are made of count their writes."""
    excluded = _C._dispatch_tls_local_exclude_set().remove(_COUNTING)
    return _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)


def schema_of(func: Any) -> Any:
    """Return the schema of an operation; None for `torch.cond` and its kin, which have none."""
    return getattr(func, "_schema", None)


def op_name(func: Any) -> str:
    """Return the bare name of an operation: ``add_`` of ``aten::add_.Tensor``."""
    schema = schema_of(func)
    return schema.name.rpartition("::")[2] if schema is not None else str(func)


# Asking a subclass for its version must not run its `__torch_function__`: that may do anything.
interception_off: Any = _C.DisableTorchFunctionSubclass


def version_of(tensor: Tensor) -> int:
    """Return the version of a tensor; RuntimeError for an inference tensor, which has none."""
    kind = type(tensor)
    if kind is Tensor or kind is torch.nn.Parameter:
        return tensor._version
    with interception_off():
        return tensor._version


def pin_storage(tensor: Tensor) -> Any:
    """Return what keeps the address of a tensor's storage from being used again, not its memory."""
    with interception_off():
        return StorageWeakRef(tensor.untyped_storage())


# The node whose backward runs on this thread: it names the op that saved. Without it the line is
# still known. (torch/csrc/autograd/init.cpp)
current_node: Any = getattr(_C, "_current_autograd_node", lambda: None)

# `detach()` that no dispatch mode sees: 0.9 us, where `detach()` under a mode costs 3.7. It shares
# memory and version counter, as `nn.Parameter(x)` does, which is made in this way.
# (torch/csrc/autograd/python_variable.cpp)
make_alias: Any = Tensor._make_subclass


def has_own_dispatch(kind: Any) -> bool:
    """Tell whether a tensor class handles its operations itself (a wrapper: DTensor, nested)."""
    return kind.__torch_dispatch__ is not _no_dispatch


_no_dispatch: Any = cast("Any", Tensor).__torch_dispatch__

# The innermost pair of saved-tensor hooks, to know whether they are ours. The argument says to
# look even while a compiler traces. Without it (2.6 for one) blocks are taken to end in the order
# in which they began, hooks around a block are not seen, and `torch.func.grad` refuses ours.
# (torch/csrc/autograd/init.cpp)
_top_hooks: Any = getattr(_autograd, "_top_saved_tensors_default_hooks", None)
SEES_HOOKS: bool = _top_hooks is not None
push_hooks: Any = _autograd._push_saved_tensors_default_hooks
pop_hooks: Any = _autograd._pop_saved_tensors_default_hooks


def top_hooks() -> tuple[Any, Any] | None:
    """Return the innermost pair of saved-tensor hooks of this thread; None if it cannot be seen."""
    return _top_hooks(True) if SEES_HOOKS else None


hooks_enabled: Any = getattr(_autograd, "_saved_tensors_hooks_is_enabled", lambda: True)

# Turns every dispatch mode off, for a checksum taken inside of one.
modes_off: Any = _C._DisableTorchDispatch

# Code of ours that runs between the frames of a compiled program must not be compiled itself.
# (torch/csrc/dynamo/eval_frame.c; torch._dynamo.skip does the same and imports the compiler)
_skip_code: Any = getattr(
    getattr(getattr(_C, "_dynamo", None), "eval_frame", None), "skip_code", None
)


def never_compile(*functions: Any) -> None:
    """Keep the compiler away from these functions (not from what they call)."""
    if _skip_code is not None:
        for function in functions:
            _skip_code(function.__code__)


# What `torch.func.grad` calls to refuse saved-tensor hooks.
hooks_module: Any = _autograd
HOOKS_DISABLE = "_saved_tensors_hooks_disable"

# The stack of dispatch modes. Entering one as a block sets flags of the whole process, too, which
# threads and generators leave wrong (two threads that overlap: set for ever); what they are for,
# keeping the compiler away, a mode that ignores compiled regions does not want.
mode_at: Any = _C._get_dispatch_stack_at
mode_count: Any = _C._len_torch_dispatch_stack
push_mode: Any = _C._push_on_torch_dispatch_stack


def pop_mode() -> Any:
    """Take the innermost dispatch mode off the stack of this thread, and return it."""
    return _C._pop_torch_dispatch_stack(None)


# The function that enters the engine: in a traceback it tells where backward started from.
# (torch/autograd/graph.py)
run_backward: Any = torch.autograd.graph._engine_run_backward

# The node class of custom Functions, and what calls their `backward`.
# (torch/autograd/function.py)
FunctionNode: Any = torch.autograd.function.BackwardCFunction

# What `module(...)` runs, in each release since 2.1. (torch/nn/modules/module.py)
call_module: Any = torch.nn.Module._wrapped_call_impl
