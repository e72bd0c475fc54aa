"""Code of torch that takes a tensor out of Python's sight, inside a guarded call.

A transform of `torch.func` works on wrappers of its own around the tensor underneath, and a collective
hands it to a process group; what either writes in place is unseen. Like everything that gets hold of
raw memory, it gets that of a private copy.
"""

from __future__ import annotations

from typing import Any

from safemodule import _report
from safemodule._compat import interception_off
from safemodule._location import locate
from safemodule._outside_compat import before_collectives, before_transforms, outside_transforms
from safemodule._redirect import redirect
from safemodule._saved import maybe_saved
from safemodule._state import handle_and_root
from safemodule._tensor import FrozenTensor


def _make_private(tensor: Any, op: str, *, moves_versions: bool) -> None:
    """Give a handle memory of its own; anew where a write would spoil unseen what autograd saved."""
    handle, root = handle_and_root(tensor)
    with root.locked(), interception_off(), outside_transforms():
        if root.private and (moves_versions or not maybe_saved(FrozenTensor, handle, root)):
            return
        copied = redirect(FrozenTensor, handle, root)
        shape, dtype, device = tuple(handle.shape), str(handle.dtype), str(handle.device)
    _report.export(
        op=op,
        argument=root.argument,
        module=root.module,
        shape=shape,
        dtype=dtype,
        device=device,
        location=locate(),
        bytes_copied=copied,
    )


def _for_a_transform(tensor: Any) -> None:
    _make_private(tensor, "torch.func", moves_versions=True)


def _for_a_collective(tensor: Any) -> None:
    _make_private(tensor, "torch.distributed", moves_versions=False)


def install() -> None:
    """Have every handle that goes out of sight made private first."""
    before_transforms(FrozenTensor, _for_a_transform)
    before_collectives(FrozenTensor, _for_a_collective)
