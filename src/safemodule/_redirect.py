"""Give a handle memory of its own, before it is written.

The handle is cloned and the two exchange implementations: the Python object that the module holds
is the copy now, while all that autograd saved keeps the old implementation. Live views are made
again from the copy and exchanged likewise, so views and bases agree, in autograd too.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from safemodule import _custom, _thrift
from safemodule._compat import (
    COUNTS_TELL,
    dispatch_modes,
    increment_version,
    interception_off,
    is_alias,
    modes_only_watch,
    outside_modes,
    set_grad_enabled,
    swap,
)
from safemodule._state import Family, Root, View, handle_and_root
from safemodule._views import replay, replay_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

# How many redirects began, and how many are under way, in all threads.
REDIRECTS: list[int] = [0, 0]
_counting = threading.Lock()
set_data: Any = Tensor.data.__set__  # type: ignore[attr-defined]


def redirect(kind: type, handle: Any, root: Root) -> int:
    """Move a handle and its live views to a fresh copy. Returns the bytes copied.

    Interception must be off and the root's lock held. Raises RuntimeError, with nothing changed,
    if C++ holds a weak reference to one of the tensors.
    """
    if dispatch_modes() and not modes_only_watch():
        # A copy of real memory belongs to nobody's trace.
        with outside_modes():
            return _redirect(kind, handle, root)
    return _redirect(kind, handle, root)


def _redirect(kind: type, handle: Any, root: Root) -> int:
    before = torch.is_grad_enabled()
    with _counting:
        REDIRECTS[0] += 1
        REDIRECTS[1] += 1
    family = root.family and root.family()
    views = list(family.live(kind)) if family is not None else []
    try:
        if _is_leaf(handle):
            copied = _redirect_leaf(handle, views)
        else:
            set_grad_enabled(True)  # the copy is differentiable, also of a write under no_grad
            copied = _redirect_root(kind, handle, root, views)
    finally:
        set_grad_enabled(before)
        with _counting:
            REDIRECTS[1] -= 1
    if root.private:
        _thrift.moved(root)
    root.private, root.lazy = True, False
    root.saved, root.read = False, before
    return copied


def catch_up(result: Any) -> None:
    """Renew views that were made while another thread may have redirected their handle.

    A view is seen by a redirect once its family knows it; one that was made before and noted after
    would stay on the old memory.
    """
    if isinstance(result, (list, tuple)):
        for item in result:
            catch_up(item)
        return
    state = getattr(result, "_safemodule", None)
    if type(state) is View:
        handle, root = state.family.handle, state.family.root
        with root.locked(), interception_off():
            if not is_alias(handle, result):
                swap(result, replay_chain(state, handle))


def leave_family(kind: type, target: Any) -> None:
    """Let a handle or view that gets another storage (`set_`, `.data =`) be a root of its own.

    It is private by now, and the views that stay keep the storage they have. Interception must be
    off.
    """
    handle, root = handle_and_root(target)
    alone = Root(None, root.plan, root.owner, root.argument)
    alone.origin, alone.over, alone.private = root, root.over, True
    family = root.family and root.family()
    if target is handle and family is not None:
        family.handle = handle.view_as(handle)
        family.handle.__class__ = kind
        family.handle._safemodule = root
    if target is handle and handle._is_view():  # of a copy with the input's own geometry
        before = torch.is_grad_enabled()
        set_grad_enabled(True)
        try:
            swap(handle, handle.clone())
        finally:
            set_grad_enabled(before)
    target._safemodule = alone


def _redirect_root(kind: type, handle: Any, root: Root, views: list[Any]) -> int:
    copy: Any = _same_geometry(handle) if root.geometry else handle.clone()
    pairs = _replayed(copy, views)
    _swap_all([(handle, copy), *((old, new) for old, new in pairs if not _is_leaf(old))])
    for old, new in pairs:
        if _is_leaf(old):
            _refill(old, new)
    _custom.redirected([handle, *views])
    _keep_old(kind, copy, root, pairs)
    return _nbytes(handle)


def _same_geometry(handle: Any) -> Tensor:
    """Copy the whole storage, so that strides and offsets read before mean the same elements."""
    count = handle.untyped_storage().nbytes() // handle.element_size()
    whole = handle.as_strided((count,), (1,), 0).clone()
    return whole.as_strided(handle.size(), handle.stride(), handle.storage_offset())


def revive(target: Any) -> None:
    """Let a view of a private copy that was made under `no_grad` be written with gradients on.

    Autograd refuses that ("a view was created in no_grad mode and is being modified inplace with
    grad mode enabled"): it is made again, with gradients. Interception must be off.
    """
    state = target._safemodule
    if type(state) is not View:
        if state.geometry:  # the copy may be a view of its own storage
            _grad_fn(target)
        return
    if state.grad or _is_leaf(target):
        # A view whose base was written since learns of it when asked for its `grad_fn`; without,
        # `v[:] = w` is refused as the write of a leaf.
        _grad_fn(target)
        return
    step: View | None = state
    while step is not None:
        step.grad = True
        step = step.parent
    swap(target, replay_chain(state, state.family.handle))


def _redirect_leaf(handle: Any, views: list[Any]) -> int:
    """Give new memory to a handle that became a leaf (`requires_grad_`), which stays that leaf."""
    old = handle.data
    set_data(handle, handle.detach().clone())
    try:
        pairs = _replayed(handle, views)
        _swap_all([pair for pair in pairs if not _is_leaf(pair[0])])
    except RuntimeError:
        set_data(handle, old)
        raise
    for view, new in pairs:
        if _is_leaf(view):
            _refill(view, new)
    return _nbytes(handle)


def _replayed(base: Tensor, views: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Make every view again from `base`, parents once for all their children."""
    made: dict[int, Tensor] = {}
    pairs: list[tuple[Any, Any]] = []
    alive = {id(view._safemodule): view for view in views}
    for view in views:
        chain: list[View] = []
        state: View | None = view._safemodule
        while state is not None and id(state) not in made:
            chain.append(state)
            state = state.parent
        parent = base if state is None else made[id(state)]
        for step in reversed(chain):
            parent = replay(step, parent)
            old = alive.get(id(step))
            if old is not None and not old._is_view() and _requires_grad(old) and not _leaf(old):
                set_grad_enabled(True)
                parent = _Relocate.apply(old, parent)
            made[id(step)] = parent
        pairs.append((view, parent))
    return pairs


class _Relocate(torch.autograd.Function):
    """The same value in other memory, with the history it has.

    For `d = x.detach()` that was written with something differentiable: to autograd it is no view.
    """

    @staticmethod
    def forward(ctx: Any, old: Tensor, memory: Tensor) -> Tensor:
        del ctx, old
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return grads[0], None


def _swap_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    done = 0
    try:
        for old, new in pairs:
            swap(old, new)
            done += 1
    except RuntimeError as error:
        for old, new in reversed(pairs[:done]):  # an exchange undoes itself
            swap(old, new)
        raise RuntimeError(
            "safemodule: an input is written while C++ code holds a weak reference to it, so it "
            "cannot be redirected to a copy; nothing was written. Clone it first: x = x.clone()"
        ) from error


def _refill(leaf: Any, new: Tensor) -> None:
    """Give the new memory to a view that lives as a leaf of its own; a stale use is refused."""
    set_data(leaf, new.detach())
    increment_version(leaf)


def _keep_old(kind: type, old: Any, root: Root, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Protect what has the old implementation now, if autograd can hand it out again.

    A recomputing checkpoint and a custom Function's `saved_tensors` give Python the very objects
    that took part in the exchange, and they still share the caller's memory.
    """
    if COUNTS_TELL and old._use_count() == 1 and all(new._use_count() == 1 for _, new in pairs):
        return
    twin = Root(None if root.private else root.source, root.plan, root.owner, root.argument)
    twin.origin = root
    old.__class__ = kind
    old._safemodule = twin
    if not pairs:
        return
    family = Family(old, twin)
    states: dict[int, View] = {}
    for view, new in pairs:
        if _is_leaf(view):
            continue
        new.__class__ = kind
        new._safemodule = _transplant(view._safemodule, family, states)
        family.add(new)
    twin.family = weakref.ref(family)


def _transplant(state: View, family: Family, states: dict[int, View]) -> View:
    """Return the same recipe for another family."""
    twin = states.get(id(state))
    if twin is None:
        parent = None if state.parent is None else _transplant(state.parent, family, states)
        twin = states[id(state)] = View(
            family, parent, state.func, state.args, state.kwargs, state.index, state.grad
        )
    return twin


def _is_leaf(tensor: Any) -> bool:
    """Tell whether a handle or view became a leaf of its own (`requires_grad_`, see `_intercept`).

    A view made under `no_grad` of something that requires a gradient calls itself a leaf too.
    """
    return bool(not tensor._is_view() and _requires_grad(tensor) and _leaf(tensor))


_requires_grad: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_grad_fn: Any = Tensor.grad_fn.__get__  # type: ignore[attr-defined]
_leaf: Any = Tensor.is_leaf.__get__  # type: ignore[attr-defined]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
