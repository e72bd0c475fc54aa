"""Private names of torch that the compiling path uses, with reasons and fallbacks."""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from safemodule._import_hook import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# True while TorchDynamo traces Python; `is_compiling` is true under `torch.export` too, which may
# run Python for real. (both public; the second since 2.6)
is_tracing: Any = torch.compiler.is_dynamo_compiling
_is_exporting: Any = getattr(torch.compiler, "is_exporting", lambda: False)

# Interception off, the name by which TorchDynamo knows it.
interception_off: Any = torch._C.DisableTorchFunctionSubclass

# What `torch.ops.higher_order` members are: checkpoint, cond, while_loop in a graph.
HigherOrderOperator: Any = getattr(torch._ops, "HigherOrderOperator", ())


def constant_in_trace(func: Any) -> Any:
    """Let TorchDynamo run `func` while it traces and take the result as a constant.

    It is what `torch.compiler.assume_constant_result` does, without importing TorchDynamo (0.9 s).
    (torch/_dynamo/decorators.py)
    """
    func._dynamo_marked_constant = True
    return func


def exporting() -> bool:
    """Tell whether `torch.export` is at work."""
    return bool(_is_exporting())  # pragma: no cover -- asked in a trace, where nothing is run


def kept_inside(kind: type[Tensor]) -> bool:
    """See to it that tensors of a class never leave the code that TorchDynamo makes.

    What leaves a compiled graph is turned into its class by `to_subclass`, and a graph that is given
    such a tensor again, after a graph break or by the next call, fails with "Multiple dispatch
    failed". For this class the tensor is left as it is. False where that cannot be arranged.
    (torch/_dynamo/codegen.py, torch/_dynamo/utils.py)
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    convert: Any = getattr(utils, "to_subclass", None)
    # Without this setting torch is so old that it cannot iterate over a subclass, nor give one to a
    # custom Function.
    config: Any = sys.modules.get("torch._dynamo.config")
    if convert is None or not hasattr(config, "nontraceable_tensor_subclasses"):
        return False
    route_in_place_functions()
    if kind not in getattr(convert, "_safemodule_inside", ()):

        def to_subclass(tensor: Any, cls: type) -> Any:
            return tensor if cls is kind else convert(tensor, cls)

        to_subclass._safemodule_inside = (kind,)  # type: ignore[attr-defined]
        utils.to_subclass = to_subclass
    return True


def route_in_place_functions() -> None:
    """Let TorchDynamo ask tensor subclasses about `torch.tanh_(x)`, as torch itself does.

    It asks about the functions that torch lists as overridable, and that list leaves out all whose
    name ends in an underscore; the in-place methods are in it.
    (torch/_dynamo/variables/torch.py: `get_overridable_functions`; torch/overrides.py)
    """
    listed: Any = getattr(
        sys.modules.get("torch._dynamo.variables.torch"), "get_overridable_functions", None
    )
    functions = listed() if listed is not None else None
    if isinstance(functions, set):
        for namespace in (torch, torch.nn.functional):
            names = [n for n in dir(namespace) if n.endswith("_") and not n.startswith("_")]
            cast("set[Any]", functions).update(getattr(namespace, name) for name in names)


def mark_compiled(func: Any) -> None:
    """Let TorchDynamo see through a wrapper of compiled code, as it does through its own.

    It follows `_torchdynamo_orig_callable` only where this mark is right (since 2.9).
    (torch/_dynamo/eval_frame.py: `innermost_fn`)
    """
    if hasattr(func, "_torchdynamo_wrapper_id"):
        func._torchdynamo_wrapper_id = id(func)


_EVAL_FRAME = "torch._dynamo.eval_frame"


def adapt_compiled(
    adapter: Callable[[Any], Any], kind: type[Tensor], own: Callable[[], Iterable[types.CodeType]]
) -> None:
    """Pass every function that `torch.compile` makes from now on through `adapter`.

    What is compiled has one entry in all its forms (function, module, `Module.compile()`): the
    function that `_TorchDynamoContext.__call__` returns. Functions made before, and frames that
    TorchDynamo compiles on its own around an uncompilable one, have no such entry: tensors of class
    `kind` then make it leave the frame to Python, and `own` yields the code that runs in between,
    which is never compiled. TorchDynamo is not imported for this (0.9 s).
    (torch/_dynamo/eval_frame.py; `nontraceable_tensor_subclasses` since 2.8: before, no class was
    traced unless it was named)
    """

    def install(eval_frame: Any) -> None:
        refused: Any = getattr(eval_frame.config, "nontraceable_tensor_subclasses", None)
        if refused is not None:
            refused.add(kind)
        skip: Any = getattr(eval_frame, "skip_code", None)
        if skip is not None:
            for code in own():
                skip(code)
        context: Any = getattr(eval_frame, "_TorchDynamoContext", None)
        if context is None:
            return
        compile_it = context.__call__

        @functools.wraps(compile_it)
        def call(self: Any, fn: Any) -> Any:
            made = compile_it(self, fn)
            return adapter(made) if isinstance(made, types.FunctionType) else made

        context.__call__ = call

    when_imported(_EVAL_FRAME, install)
