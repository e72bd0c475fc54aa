"""What happens when an operation meets a handle that it may write, export, reshape or view."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from safemodule import _report
from safemodule._compat import (
    COUNTS_TELL,
    dispatch_modes,
    interception_off,
    run_plain,
    set_grad_enabled,
    swap,
)
from safemodule._lazy_copy import settle
from safemodule._location import locate
from safemodule._modes import effective
from safemodule._redirect import leave_family, redirect
from safemodule._saved import mark_read, note_export
from safemodule._state import Root, View, handle_and_root, root_of
from safemodule._views import adopt, handles_in, make_view
from safemodule._writes import Effect, Kind
from safemodule._writing import copied_apart, facts_of, note, refuse, write_one, writing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

_EMPTY: dict[str, Any] = {}
# What gives a tensor another storage.
_STORAGE = frozenset({"data=", "set_"})
# The out-of-place twins of the ops that change a tensor's geometry in place: `x.t_()` turns the
# handle into a view `x.t()`.
_VIEW_OF = {
    f"{name}_": getattr(Tensor, name)
    for name in (
        *("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze"),
        *("as_strided", "rename"),
    )
    if hasattr(Tensor, name)
}


def intercept(
    kind: type, effect: Effect, func: Any, types: Any, args: Any, kwargs: dict[str, Any] | None
) -> Any:
    """Run one operation on handles: redirect what it writes, recognise the views it makes."""
    what = effect.kind
    if len(types) > 1 and any(t is not kind for t in types):
        return _with_foreign(kind, effect, func, args, kwargs)
    if what is Kind.WRITE:
        return _write(kind, effect, func, types, args, kwargs)
    if what is Kind.METADATA:
        return _reshape(kind, effect, func, types, args, kwargs)
    if what is Kind.EXPORT:
        return _export(kind, effect, func, types, args, kwargs)
    if what is Kind.STATE:
        if effect.name == "detach_" and type(args[0]._safemodule) is not View:
            return _detach_in_place(kind, args[0])
        _become_leaf(effect, args, kwargs)
    elif is_as_strided(effect):
        _before_as_strided(kind, args, kwargs)
    out = _run(kind, func, types, args, kwargs)
    if what is Kind.READ:
        if not COUNTS_TELL:
            mark_read(kind, args, kwargs)
        if effect.may_alias:
            adopt(kind, out, func, args, kwargs)
    return out


def _run(kind: type, func: Any, types: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    try:
        return run_plain(func, types, args, kwargs or _EMPTY)
    except TypeError:
        return retry(kind, func, args, kwargs)


def retry(kind: type, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Run a call again that a dispatch mode refused for the class of a handle.

    Tracing modes (`make_fx`, `FakeTensorMode`) inside a forward know plain tensors only. To be
    called where the error is handled.
    """
    if not dispatch_modes():
        raise  # noqa: PLE0704 -- called from an except clause
    with unmasked(kind, handles_in(kind, args, kwargs)):
        return func(*args, **(kwargs or _EMPTY))


# -- writes ----------------------------------------------------------------------------------------


def _write(kind: type, effect: Effect, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    assert effect.written is not None
    written = effect.written(args, kwargs or _EMPTY)
    if len(written) == 1 and type(written[0]) is kind and effect.name not in _STORAGE:
        return write_one(kind, effect, written[0], func, types, args, kwargs)
    targets: list[Any] = []
    for target in written:
        if type(target) is kind and not any(target is seen for seen in targets):
            targets.append(target)
    if not targets:
        if is_as_strided(effect):
            _before_as_strided(kind, args, kwargs)
        out = _run(kind, func, types, args, kwargs)
        if not COUNTS_TELL:
            mark_read(kind, args, kwargs)
        if effect.may_alias:
            adopt(kind, out, func, args, kwargs)
        return out
    with writing(kind, effect, targets) as block:
        if torch.is_grad_enabled() and effect.name.startswith("_foreach_"):
            with interception_off():
                args = (
                    *args[:1],
                    *copied_apart(kind, args[1:], [root for _, root, _, _ in block.found]),
                )
        if effect.name in _STORAGE:
            if effect.name == "data=" and type(args[1]) is kind:
                # The handle would share the memory of another input.
                args = (args[0], args[1].detach().clone())
            with interception_off():
                leave_family(kind, args[0])
        out = run_plain(func, types, args, kwargs or _EMPTY)
    if effect.may_alias:
        adopt(kind, out, func, args, kwargs)
    return out


# -- geometry --------------------------------------------------------------------------------------


def _reshape(kind: type, effect: Effect, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Change the handle's own geometry: it becomes a view of what it was."""
    handle: Any = args[0] if args else (kwargs or _EMPTY).get("self")
    name = effect.name
    view_of: Any = _VIEW_OF.get(name)
    if type(handle) is not kind:  # pragma: no cover -- a handle in another place: none is known
        return run_plain(func, types, args, kwargs or _EMPTY)
    _, root = handle_and_root(handle)
    location = locate()
    if effective(root.plan.mode) == "strict":
        refuse(name, root, handle, location)
    if name == "as_strided_":
        _before_as_strided(kind, args, kwargs)
    before = torch.is_grad_enabled()
    set_grad_enabled(True)  # it stays what it is to autograd, also under no_grad
    try:
        if view_of is None:  # pragma: no cover -- `rename_`: torch has no named tensors since 2.13
            with interception_off():
                alias = handle.view_as(handle)
                func(alias, *args[1:], **(kwargs or _EMPTY))
            args, view_of = (handle,), _ViewAs()
        else:
            with interception_off():
                alias = view_of(handle, *args[1:], **(kwargs or _EMPTY))
        become_view(kind, handle, alias, view_of, (handle, *args[1:]), kwargs)
    finally:
        set_grad_enabled(before)
    note(name, root, handle, location, 0)
    return handle


class _ViewAs:  # pragma: no cover -- as above
    """Replays as a plain alias."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)


def become_view(kind: type, handle: Any, view: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Let the Python object `handle` become `view`; what it was goes on in the other object."""
    state = handle._safemodule
    swap(handle, view)
    was = view  # the object with the implementation that the handle had
    was.__class__ = kind
    if type(state) is View:
        was._safemodule = state
        state.family.add(was)
    else:
        root = root_of(handle, state)
        was._safemodule = root
        family = root.family and root.family()
        if family is not None:
            family.handle = was
    make_view(kind, handle, was, func, (was, *args[1:]), kwargs, listed=type(state) is View)


def is_as_strided(effect: Effect) -> bool:
    """Tell whether an operation takes strides: the method, the function and torch.ops' one."""
    return effect.name.removeprefix("aten.").partition("(")[0].partition(".")[0] == "as_strided"


def _before_as_strided(kind: type, args: Any, kwargs: Any) -> None:
    """Note that strides and offset mean the input's own geometry.

    A copy is dense. Unless the input is dense itself and covers its storage, strides that were read
    of it would point elsewhere in the copy, so this one is copied with its storage.
    """
    for target in handles_in(kind, args, kwargs):
        handle, root = handle_and_root(target)
        with interception_off():
            covers = (
                handle.storage_offset() == 0
                and handle.is_contiguous()
                and handle.untyped_storage().nbytes() == handle.numel() * handle.element_size()
            )
        if not (covers or root.private):
            root.geometry = True


# -- raw memory and leaves -------------------------------------------------------------------------


def _export(kind: type, effect: Effect, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Hand out raw memory: who gets it may write there unseen, so the copy is made first."""
    exported: list[tuple[Any, Root, int]] = []
    for target in handles_in(kind, args, kwargs):
        handle, root = handle_and_root(target)
        with root.locked(), interception_off():
            copied = 0 if root.private else redirect(kind, handle, root)
            if root.lazy:  # its storage may be resized
                root.lazy = False
                settle(handle)
            root.pinned = effect.name
        exported.append((handle, root, copied))
    out = run_plain(func, types, args, kwargs or _EMPTY)
    for handle, root, copied in exported:
        with root.locked(), interception_off():
            note_export(kind, handle, root)
        if copied:
            facts = facts_of(root, handle)
            _report.export(op=effect.name, location=locate(), bytes_copied=copied, **facts)
    return out


def _detach_in_place(kind: type, handle: Any) -> Any:
    """`x.detach_()` of an input cuts off the module's tensor; the caller's stays in its graph."""
    with interception_off():
        alias = handle.detach()
    become_view(kind, handle, alias, Tensor.detach, (handle,), None)
    return handle


def _become_leaf(effect: Effect, args: Any, kwargs: Any) -> None:
    """`x.requires_grad_()` makes the handle a leaf: it gets a version counter of its own.

    An alias made by `detach()` shares the caller's counter, and what the module does to its leaf
    (an optimiser's step) must not move that.
    """
    if effect.name not in ("requires_grad_", "requires_grad="):
        return
    handle = args[0]
    on = args[1] if len(args) > 1 else (kwargs or _EMPTY).get("requires_grad", True)
    with interception_off():
        if on and not handle.requires_grad and handle.is_leaf:
            swap(handle, handle.data)


# -- other tensor subclasses -----------------------------------------------------------------------


def _with_foreign(kind: type, effect: Effect, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation that meets another tensor subclass too: that one runs it, on plain handles."""
    named = kwargs or _EMPTY
    targets = [t for t in (effect.written or _nothing)(args, named) if type(t) is kind]
    with writing(kind, effect, targets) if targets else contextlib.nullcontext():
        with unmasked(kind, handles_in(kind, args, kwargs)):
            out = func(*args, **named)
        if effect.may_alias and effect.kind is Kind.READ:
            with interception_off():
                adopt(kind, out, func, args, kwargs)
    return out


def _nothing(args: Any, kwargs: Any) -> Sequence[object]:
    del args, kwargs
    return ()


@contextlib.contextmanager
def unmasked(kind: type, handles: Iterable[Any]) -> Generator[None]:
    """Let handles be plain tensors for one call of code that must not meet the subclass."""
    hidden = list(handles)
    for handle in hidden:
        handle.__class__ = Tensor
    try:
        yield
    finally:
        for handle in hidden:
            handle.__class__ = kind
