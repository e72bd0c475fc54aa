"""Private names of torch that the compiling path uses, with reasons and fallbacks."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

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
    return bool(_is_exporting())


def kept_inside(kind: type[Tensor]) -> bool:
    """See to it that tensors of a class never leave the code that TorchDynamo makes.

    What leaves a compiled graph is turned into its class by `to_subclass`, and a graph that is given
    such a tensor again, after a graph break or by the next call, fails with "Multiple dispatch
    failed". For this class the tensor is left as it is. False where that cannot be arranged.
    (torch/_dynamo/codegen.py, torch/_dynamo/utils.py)
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    convert: Any = getattr(utils, "to_subclass", None)
    if convert is None:
        return False
    if kind not in getattr(convert, "_safemodule_inside", ()):

        def to_subclass(tensor: Any, cls: type) -> Any:
            return tensor if cls is kind else convert(tensor, cls)

        to_subclass._safemodule_inside = (kind,)  # type: ignore[attr-defined]
        utils.to_subclass = to_subclass
    return True
