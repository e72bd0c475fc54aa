"""The private names of torch that `explain()` uses, each with its reason and what happens without.

Apart from `_compat` because nothing of it is needed by a guarded call. Without `DispatchMode` there
is no `explain()`; everything else has a fallback.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch

from safemodule._writes_compat import schema_of

if TYPE_CHECKING:
    from types import CodeType

_C: Any = torch._C
_autograd: Any = getattr(_C, "_autograd", None)

# --- Operations, as a dispatch mode sees them ---

# The only way to see every write, those of C++ and of optimisers included. Documented for users,
# in a private module. (torch/utils/_python_dispatch.py)
DispatchMode: Any = _python_dispatch.TorchDispatchMode

# The stack of dispatch modes. Entering one as a block sets flags of the whole process, too, which
# threads and generators leave wrong (two threads that overlap: set for ever); what they are for,
# keeping the compiler away, a mode that ignores compiled regions does not want. Without these names
# the block is entered. (torch/csrc/autograd/init.cpp)
_mode_at: Any = getattr(_C, "_get_dispatch_stack_at", None)
_mode_count: Any = getattr(_C, "_len_torch_dispatch_stack", None)
_push_mode: Any = getattr(_C, "_push_on_torch_dispatch_stack", None)
_pop_mode: Any = getattr(_C, "_pop_torch_dispatch_stack", None)
_OWN_STACK: bool = None not in (_mode_at, _mode_count, _push_mode, _pop_mode)


def enter_mode(mode: Any) -> None:
    """Put a mode on the stack of this thread."""
    if _OWN_STACK:
        _push_mode(mode)
    else:
        mode.__enter__()


def leave_mode(mode: Any) -> None:
    """Take a mode off the stack of this thread, also from below others; none if it is not there."""
    if not _OWN_STACK:
        mode.__exit__(None, None, None)
        return
    if not any(_mode_at(n) is mode for n in range(_mode_count())):  # entered in another thread
        return
    lifted: list[Any] = []
    while (top := _pop_mode(None)) is not mode:
        lifted.append(top)
    for other in reversed(lifted):
        _push_mode(other)


# Off, the modes do not see a checksum taken inside of one. (torch/csrc/autograd/init.cpp)
modes_off: Any = getattr(_C, "_DisableTorchDispatch", contextlib.nullcontext)


def op_name(func: Any) -> str:
    """Return the bare name of an operation: ``add_`` of ``aten::add_.Tensor``."""
    schema = schema_of(func)
    return schema.name.rpartition("::")[2] if schema is not None else str(func)


def runner(func: Any) -> Any:
    """Return what an operation calls, to save the call of `OpOverload` itself: 0.2 us."""
    return getattr(func, "_op", func) if type(func) is torch._ops.OpOverload else func


# Writes are counted by a kernel of the key ADInplaceOrView, which runs above a dispatch mode and is
# off below it. Operations that have no such kernel (`_foreach_add_`, extensions) are counted by
# what they are made of: for those the key must be on again, or the mode would hide their writes
# from autograd. Without these names it does.
# (torch/csrc/autograd/ADInplaceOrViewTypeManual.cpp, c10/core/impl/LocalDispatchKeySet.h)
_has_kernel: Any = getattr(_C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: True)
_force_keys: Any = getattr(_C, "_ForceDispatchKeyGuard", None)


def counts_writes(func: Any) -> bool:
    """Tell whether an operation has a kernel of its own that counts its writes."""
    return _has_kernel(func.name(), "ADInplaceOrView")


def counting() -> Any:
    """Return a block in which the operations that others are made of count their writes."""
    if _force_keys is None:
        return contextlib.nullcontext()
    excluded = _C._dispatch_tls_local_exclude_set().remove(_C.DispatchKey.ADInplaceOrView)
    return _force_keys(_C._dispatch_tls_local_include_set(), excluded)


# Code of ours that runs between the parts of a compiled program must not be compiled itself: the
# hooks of Python that start the compiler are on there. `torch._dynamo` has functions for it, and
# importing it takes seconds. (torch/csrc/dynamo/eval_frame.cpp)
_eval_frame: Any = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)
_set_strategy: Any = getattr(_eval_frame, "set_code_exec_strategy", None)
_skip_code: Any = getattr(_eval_frame, "skip_code", None)  # its name until 2.6


def never_compile(*functions: Any) -> None:
    """Keep the compiler away from these functions (not from what they call)."""
    for function in functions:
        if _set_strategy is not None:
            action = _eval_frame._FrameAction
            strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
            _set_strategy(function.__code__, strategy)
        elif _skip_code is not None:
            _skip_code(function.__code__)


# --- Tensors and storages ---

# Asking a subclass for its version must not run its `__torch_function__`: that may do anything.
interception_off: Any = _C.DisableTorchFunctionSubclass


def version_of(tensor: Tensor) -> int:
    """Return the version of a tensor; RuntimeError for an inference tensor, which has none."""
    kind = type(tensor)
    if kind is Tensor or kind is torch.nn.Parameter:
        return tensor._version
    with interception_off():
        return tensor._version


def _storage_address_slowly(tensor: Tensor) -> int:
    with interception_off():
        return tensor.untyped_storage()._cdata


# The address of a storage: what tells which tensors share memory, in 0.1 us.
# (torch/csrc/Module.cpp: `_storage_address`)
storage_of: Any = getattr(_C, "_storage_address", _storage_address_slowly)


def pin_storage(tensor: Tensor) -> Any:
    """Return what keeps the address of a tensor's storage from being used again, not its memory."""
    with interception_off():
        return StorageWeakRef(tensor.untyped_storage())


def _alias_slowly(kind: Any, tensor: Tensor) -> Tensor:
    del kind
    with interception_off(), modes_off():
        return tensor.detach()


# `detach()` that no dispatch mode sees: 0.9 us, where `detach()` under a mode costs 3.7. It shares
# memory and version counter, as `nn.Parameter(x)` does, which is made in this way.
# (torch/csrc/autograd/python_variable.cpp)
make_alias: Any = getattr(Tensor, "_make_subclass", _alias_slowly)

_no_dispatch: Any = getattr(Tensor, "__torch_dispatch__", None)


def has_own_dispatch(kind: Any) -> bool:
    """Tell whether a tensor class handles its operations itself (a wrapper: DTensor, nested)."""
    return kind.__torch_dispatch__ is not _no_dispatch


# --- Saved-tensor hooks ---

# Entering and leaving a pair, not as a block: see `_explain_stacks`. (torch/autograd/graph.py)
push_hooks: Any = getattr(
    _autograd,
    "_push_saved_tensors_default_hooks",
    lambda pack, unpack: saved_tensors_hooks(pack, unpack).__enter__(),
)
pop_hooks: Any = getattr(
    _autograd,
    "_pop_saved_tensors_default_hooks",
    lambda: saved_tensors_hooks(lambda t: t, lambda t: t).__exit__(),
)
hooks_enabled: Any = getattr(_autograd, "_saved_tensors_hooks_is_enabled", lambda: True)

# The innermost pair of saved-tensor hooks, to know whether they are ours. The argument says to
# look even while a compiler traces. Without it (2.6 for one) blocks are taken to end in the order
# in which they began, hooks around a block are not seen, and `torch.func.grad` refuses ours.
# (torch/csrc/autograd/init.cpp)
_top_hooks: Any = getattr(_autograd, "_top_saved_tensors_default_hooks", None)
SEES_HOOKS: bool = _top_hooks is not None


def top_hooks() -> tuple[Any, Any] | None:
    """Return the innermost pair of saved-tensor hooks of this thread; None if it cannot be seen."""
    return _top_hooks(True) if SEES_HOOKS else None


# What `torch.func.grad` calls to refuse saved-tensor hooks. (torch/_functorch/vmap.py)
hooks_module: Any = _autograd
HOOKS_DISABLE = "_saved_tensors_hooks_disable"

# --- Backward, and calls of modules ---

# The node whose backward runs on this thread: it names the op that saved. Without it the line is
# still known. (torch/csrc/autograd/init.cpp)
current_node: Any = getattr(_C, "_current_autograd_node", lambda: None)


def _empty_queue() -> None:
    with torch.inference_mode(mode=False), torch.enable_grad():
        torch.zeros((), requires_grad=True).clone().backward()


@functools.cache
def empty_queue_at_exit() -> None:
    """Have the engine forget a backward that failed before Python ends.

    Nodes that it was about to run wait in a queue of the thread until its next backward, with what
    they saved. Is there none, they are freed after Python has ended, and torch 2.15 then takes down
    the process to free hooks of Python. (torch/csrc/autograd/python_saved_variable_hooks.cpp)
    """
    atexit.register(_empty_queue)


# The attributes of a node that hold what it saved, described in PyTorch's notes on autograd: read
# as `_saved_self` (`saved_tensors` of a custom Function), set hooks on as `_raw_saved_self`. Without
# them no argument is named, and what was saved before a block began is not explained.
# (tools/autograd/gen_autograd_functions.py, torch/csrc/autograd/python_function.cpp)
_SAVED = "_saved_"


def saved_attributes(node: Any) -> list[str]:
    """Return the names of a node's attributes that hold what it saved."""
    return [name for name in dir(node) if name.startswith(_SAVED) or name == "saved_tensors"]


def saved_name(attribute: str) -> str:
    """Return what PyTorch calls a saved value: ``self`` for ``_saved_self``."""
    return attribute.removeprefix(_SAVED)


def raw_saved(node: Any, name: str) -> Any:
    """Return what holds the saved value of this name, or a tuple of such; None if there is none."""
    return getattr(node, f"_raw_saved_{name.removeprefix('saved_')}", None)


def saved_in_training(node: Any) -> bool:
    """Tell whether a node is a batch norm's, run in training."""
    return getattr(node, f"{_SAVED}training", False) is True


def forward_of(node: Any) -> Any:
    """Return the `forward` of the custom Function whose node this is; None if it is none.

    Without the attribute its line is not shown. (torch/autograd/function.py)
    """
    return getattr(getattr(node, "_forward_cls", None), "forward", None)


# The node class of custom Functions, which calls their `backward`. (torch/autograd/function.py)
FunctionNode: Any = torch.autograd.function.BackwardCFunction

# The frame of the function that enters the engine: in a traceback it tells where backward started
# from, below a hook that the engine itself calls it. (torch/autograd/graph.py)
_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
RUN_BACKWARD: CodeType | None = getattr(_run_backward, "__code__", None)

# The frame of what `module(...)` runs: it tells which module an operation belongs to.
# (torch/nn/modules/module.py)
_call_module: Any = getattr(torch.nn.Module, "_wrapped_call_impl", None)
CALL_MODULE: CodeType | None = getattr(_call_module, "__code__", None)
