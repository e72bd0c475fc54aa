"""`torch.func` inside a guarded call: `vmap`, `grad`, `jvp`, `functionalize` and what is made of them.

A transform works on wrappers of its own around the tensor underneath, so what it writes in place is
unseen. Like everything that gets hold of raw memory, it gets that of a private copy.
"""

from __future__ import annotations

from typing import Any

from safemodule import _report
from safemodule._compat import interception_off
from safemodule._location import locate
from safemodule._redirect import redirect
from safemodule._state import handle_and_root
from safemodule._tensor import FrozenTensor
from safemodule._transforms_compat import before_transforms, outside_transforms


def _make_private(tensor: Any) -> None:
    handle, root = handle_and_root(tensor)
    if root.private:
        return
    with root.locked(), interception_off(), outside_transforms():
        if root.private:
            return
        copied = redirect(FrozenTensor, handle, root)
        shape, dtype, device = tuple(handle.shape), str(handle.dtype), str(handle.device)
    _report.export(
        op="torch.func",
        argument=root.argument,
        module=root.module,
        shape=shape,
        dtype=dtype,
        device=device,
        location=locate(),
        bytes_copied=copied,
    )


def install() -> None:
    """Have every handle that a transform wraps made private first."""
    before_transforms(FrozenTensor, _make_private)
