"""The private names of torch that tell who is written, each with its reason and a fallback.

Without them functions are judged by their names and signatures, and every result is looked at.
"""

from __future__ import annotations

from typing import Any

import torch

_C: Any = torch._C


def _no_schemas(_name: str) -> list[Any]:
    return []


def _nobody_knows(_name: str, _key: str) -> bool:
    raise RuntimeError


# All schemas of a name, "aten::add" for one, without making the object torch.ops.aten.add.
# (torch/csrc/jit/python/init.cpp) Without it no schema is known but that of a given overload.
find_schemas: Any = getattr(_C, "_jit_get_schemas_for_operator", _no_schemas)

# Does an operator, by its name with overload, have a kernel for a dispatch key? One that has a
# composite kernel is made of others, so that its schema vouches for nothing.
# RuntimeError if the dispatcher does not know the operator. (torch/csrc/utils/python_dispatch.cpp)
# Without it none is known, and no result of one is taken for new memory.
has_kernel: Any = getattr(_C, "_dispatch_has_kernel_for_dispatch_key", _nobody_knows)

# Reads an attribute of a handle without arriving in `__torch_function__`, nor in a mode of the
# user's, where the public `DisableTorchFunctionSubclass` leaves modes on.
# (torch/csrc/utils/disable_torch_function.cpp) Without it modes see the read.
interception_off: Any = getattr(_C, "DisableTorchFunction", _C.DisableTorchFunctionSubclass)


def schema_of(overload: Any) -> Any:
    """Return the schema of ``torch.ops.aten.add_.Tensor``; None where it is not to be had.

    It is an attribute of the overload (torch/_ops.py); else it is found by the name. `torch.cond` and
    its kin have none.
    """
    schema = getattr(overload, "_schema", None)
    if schema is not None or not hasattr(overload, "name"):
        return schema
    name, _, which = overload.name().partition(".")
    return next((s for s in find_schemas(name) if s.overload_name == which), None)
