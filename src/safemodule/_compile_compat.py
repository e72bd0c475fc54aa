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


def admit_to_compiled_code(kind: type[Tensor]) -> None:
    """Let tensors of a class be inputs of compiled code: a graph break hands them on.

    The first run of a compiled graph is checked by a dispatch mode (since 2.9) that refuses classes
    it does not know, with "Multiple dispatch failed".
    (torch/_functorch/_aot_autograd/runtime_wrappers.py: `_AnalyzeCustomOpInputOutputMode`)
    """
    wrappers: Any = sys.modules.get("torch._functorch._aot_autograd.runtime_wrappers")
    known: Any = getattr(wrappers, "HANDLED_TYPES", None)
    if isinstance(known, tuple) and kind not in known:
        wrappers.HANDLED_TYPES = (*known, kind)
