"""Write handles: give them memory of their own first, and report what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from safemodule import _report
from safemodule._compat import interception_off, run_plain
from safemodule._lazy_copy import settle
from safemodule._location import Location, locate
from safemodule._modes import effective
from safemodule._redirect import redirect, revive
from safemodule._saved import maybe_saved
from safemodule._state import Root, handle_and_root
from safemodule._views import adopt, handles_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from safemodule._writes import Effect

# In-place ops of which autograd saves no tensor argument.
_SAVES_NOTHING = frozenset({"__setitem__", "copy_", "add_", "sub_", "__iadd__", "__isub__"})


def write_one(
    kind: type, effect: Effect, target: Any, func: Any, types: Any, args: Any, kwargs: Any
) -> Any:
    """Write one handle: what `writing` does, at half of its price."""
    location = locate()
    handle, root = handle_and_root(target)
    if effective(root.plan.mode) == "strict":
        refuse(effect.name, root, target, location)
    recording = torch.is_grad_enabled()
    with root.lock or root.locked():
        with interception_off():
            copied = make_private(kind, handle, root, location)
            if recording:
                revive(target)
                first = args[0] if args else None
                apart = first is target or isinstance(first, (list, tuple))
                if apart and len(args) > 1 and effect.name not in _SAVES_NOTHING:
                    args = (args[0], *copied_apart(kind, args[1:], [root]))
        if recording and effect.saves_result:
            root.saved = True
        out = run_plain(func, types, args, kwargs) if kwargs else run_plain(func, types, args)
        root.written = True
    note(effect.name, root, handle, location, copied)
    if effect.may_alias and out is not target:
        adopt(kind, out, func, args, kwargs)
    return out


def copied_apart(kind: type, args: Any, roots: list[Root]) -> Any:
    """Copy what an operation reads of the memory that it writes: `x.mul_(x)`, `x.addcmul_(x, p)`.

    Autograd saves what is read, and the write would spoil it. Interception must be off.
    """
    found = []
    for arg in args:
        if type(arg) is kind and handle_and_root(arg)[1] in roots:
            found.append(arg.clone())
        elif isinstance(arg, (list, tuple)) and any(True for _ in handles_in(kind, arg)):
            found.append(copied_apart(kind, arg, roots))
        else:
            found.append(arg)
    return tuple(found) if isinstance(args, tuple) else found


def make_private(kind: type, handle: Any, root: Root, location: Location) -> int:
    """Redirect a handle unless its memory is its own and nobody saved it. Returns bytes copied."""
    if root.private and not maybe_saved(kind, handle, root):
        if root.lazy:  # `out=` may resize it
            root.lazy = False
            settle(handle)
        return 0
    copied = redirect(kind, handle, root)
    if root.pinned is not None:
        _report.moved(root.pinned, root.argument, root.module, location)
    return copied


class writing:  # noqa: N801 -- used as a block
    """A block in which the targets may be written: they have memory of their own.

    On leaving, the writes are reported; if the block raises, they are not.
    """

    __slots__ = ("effect", "found", "kind", "location", "locks", "targets")

    def __init__(self, kind: type, effect: Effect, targets: Sequence[Any]) -> None:
        self.kind = kind
        self.effect = effect
        self.targets = targets

    def __enter__(self) -> writing:  # noqa: PYI034 -- nobody derives from it
        self.location = locate()
        found: list[tuple[Any, Root, Any]] = []
        for target in self.targets:
            handle, root = handle_and_root(target)
            if not any(root is seen for _, seen, _ in found):
                found.append((handle, root, target))
        for _, root, target in found:
            if effective(root.plan.mode) == "strict":
                refuse(self.effect.name, root, target, self.location)
        self.found: list[tuple[Any, Root, Any, int]] = []
        self.locks = [root.locked() for _, root, _ in found]
        self.locks.sort(key=id)  # one order for all threads
        for lock in self.locks:
            lock.acquire()
        try:
            for handle, root, target in found:
                self.found.append((handle, root, target, self._prepare(handle, root)))
        except BaseException:
            self._release()
            raise
        return self

    def _prepare(self, handle: Any, root: Root) -> int:
        with interception_off():
            copied = make_private(self.kind, handle, root, self.location)
            if torch.is_grad_enabled():
                for target in self.targets:
                    revive(target)
        return copied

    def _release(self) -> None:
        for lock in self.locks:
            lock.release()

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        saves = self.effect.saves_result and torch.is_grad_enabled()
        for _, root, _, _ in self.found:
            root.saved |= saves
        self._release()
        if error is None:
            for _, root, target, copied in self.found:
                root.written = True
                note(self.effect.name, root, target, self.location, copied)


def facts_of(root: Root, tensor: Any) -> dict[str, Any]:
    with interception_off():
        return {
            "argument": root.argument,
            "module": root.module,
            "shape": _shape(tensor),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
        }


def _shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape; -1 stands for a ragged dimension of a nested tensor."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    sizes: list[int] = []
    for dim in range(tensor.dim()):
        try:
            sizes.append(tensor.size(dim))
        except RuntimeError:
            sizes.append(-1)
    return tuple(sizes)


def note(op: str, root: Root, target: Any, location: Location, copied: int) -> None:
    mode = effective(root.plan.mode)
    if mode == "off":
        return
    if mode == "copy" and _report.is_quiet(op, root.argument, root.module, location):
        return
    facts = facts_of(root, handle_and_root(target)[0])
    _report.report(mode, op=op, location=location, bytes_copied=copied, kind="tensor", **facts)


def refuse(op: str, root: Root, target: Any, location: Location) -> None:
    facts = facts_of(root, handle_and_root(target)[0])
    _report.refuse(op=op, location=location, kind="tensor", **facts)
