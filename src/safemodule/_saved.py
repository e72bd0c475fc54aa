"""May autograd have saved the present value of a private copy? Then a write needs a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from safemodule import _custom
from safemodule._compat import COUNTS_TELL, storage_owners
from safemodule._state import handle_and_root
from safemodule._views import handles_in

if TYPE_CHECKING:
    from safemodule._state import Family, Root

_base: Any = Tensor._base.__get__  # type: ignore[attr-defined]


def mark_read(kind: type, args: Any, kwargs: dict[str, Any] | None) -> None:
    """Note a differentiable use, where use counts do not tell what autograd saved."""
    if torch.is_grad_enabled():
        for handle in handles_in(kind, args, kwargs):
            _, root = handle_and_root(handle)
            root.read = True


def maybe_saved(kind: type, handle: Any, root: Root) -> bool:
    """Tell whether autograd, or anything else in C++, may hold the private copy's present value.

    Each Python tensor owns its implementation once and each differentiable view owns its base
    once; every further owner of an implementation, or of the storage, is a saved value. Saying
    yes wrongly costs a copy, never a gradient. Interception must be off.
    """
    if root.saved:
        return True
    if not COUNTS_TELL:  # a custom Function reads unseen: only what gradients never met is safe
        return root.read or torch.is_grad_enabled()
    family = root.family and root.family()
    if family is None and not root.geometry:  # the usual loop: no view is alive
        extra = handle._use_count() - 1
        if extra > root.exported and not torch.is_grad_enabled():
            extra -= _custom.held_by_apply([handle])
        return extra > root.exported or (root.pinned is None and storage_owners(handle) > 1)
    extra, tensors = _extra_owners(kind, handle, family)
    if extra > root.exported:
        return True
    # Whoever has the address owns the storage too.
    return root.pinned is None and storage_owners(handle) > tensors


def _extra_owners(kind: type, handle: Any, family: Family | None) -> tuple[int, int]:
    """Count the owners beyond Python and views, and the tensors that share the memory."""
    members: list[Any] = [handle]
    if family is not None:
        members.extend(family.live(kind))
    owners = {id(member): 1 for member in members}
    others: list[Any] = []  # bases that Python has dropped; kept here so that their ids stay theirs
    for member in members:
        base = _base(member)
        if base is not None:
            if id(base) not in owners:
                owners[id(base)] = 0
                others.append(base)
            owners[id(base)] += 1
    extra = sum(max(0, member._use_count() - owners[id(member)]) for member in members)
    if extra and not torch.is_grad_enabled():
        extra -= _custom.held_by_apply(members)
    return extra, len(owners)


def note_export(kind: type, handle: Any, root: Root) -> None:
    """Note how many owners an export added (DLPack owns the tensor): they are no saved values."""
    family = root.family and root.family()
    root.exported = _extra_owners(kind, handle, family)[0]
