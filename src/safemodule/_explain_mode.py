"""The dispatch mode that notes every write while an `explain()` block is open.

It sees each operation below autograd: those of C++ and of optimisers, of backward and of
recomputation. What an operation writes is read from its schema, once.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from safemodule import _explain_compat as compat
from safemodule._explain_frames import place_of_write

if TYPE_CHECKING:
    from collections.abc import Callable

    from safemodule._explain_notes import Notes

__all__ = ["WriteMode", "view_key"]

# Never further up than our own frames: a thread of the engine has no others.
_getframe: Final = sys._getframe


class _Plan(NamedTuple):
    """What to look at when one operation runs."""

    written: tuple[tuple[int, str], ...] = ()
    """Position and name of each argument that is written; position -1: by name alone."""
    training: int = -1
    """Position of a flag without which nothing is written, -1 for none."""
    counted: bool = False
    """The operation has a kernel that moves the version, above this mode: after we return."""
    custom: bool = False
    """Not one of PyTorch's own, and its schema need not be true."""
    view: bool = False
    """It returns a view."""
    views: bool = False
    """It returns several views, which autograd lets nobody write."""


_NOTHING: Final = _Plan()

# They write running statistics, and their schemas do not say so: position of the flag, and of the
# arguments. (aten/src/ATen/native/native_functions.yaml)
_STATISTICS: Final = _Plan(((3, "running_mean"), (4, "running_var")), training=5)
_BATCH_NORMS: Final = frozenset(
    {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
)

# By id(): hashing an operation is a call in Python. `_plans` keeps the operations alive.
_plans: Final[dict[int, tuple[Any, _Plan]]] = {}
# Those of which nothing is noted, and how to run them: the hot path of the mode.
_quiet: Final[dict[int, Callable[..., Any]]] = {}


def _plan(func: Any) -> _Plan:
    """Read what an operation does, and remember it."""
    known = _plans.get(id(func))
    if known is not None:
        return known[1]
    try:
        plan = _read(func)
    except Exception:  # noqa: BLE001  sizes of symbolic shapes arrive as operations, too; whatever
        plan = _NOTHING  # it is, an error here would be one in the user's program
    _plans[id(func)] = (func, plan)
    if plan is _NOTHING:
        _quiet[id(func)] = compat.runner(func)
    return plan


# No comprehensions: each is a function of its own, which the compiler would look at.
def _read(func: Any) -> _Plan:
    schema = compat.schema_of(func)
    if schema is None:
        return _NOTHING
    if schema.name in _BATCH_NORMS:
        return _STATISTICS
    written: list[tuple[int, str]] = []
    everything: list[tuple[int, str]] = []
    for position, arg in enumerate(schema.arguments):
        known_by = (-1 if arg.kwarg_only else position, arg.name)
        everything.append(known_by)
        if arg.alias_info is not None and arg.alias_info.is_write:
            written.append(known_by)
    foreign = not schema.name.startswith(("aten::", "prim"))
    if foreign or written:
        counted = compat.counts_writes(func)
        if written:
            return _Plan(tuple(written), counted=counted)
        if not counted:
            return _Plan(tuple(everything), custom=True)
    for out in schema.returns:
        if out.alias_info is not None:
            many = len(schema.returns) > 1 or str(schema.returns[0].type).startswith("List")
            return _Plan(view=not many, views=many)
    return _NOTHING


class WriteMode(compat.DispatchMode):
    """Notes each write after it has happened: one that failed has written nothing.

    Args:
        notes: Where to; None to note nothing, inside of a mode that does.
        before: Called with the written tensors before each write that happens inside of backward.
    """

    # Else `torch.cond` and its kin refuse to run under a mode.
    supports_higher_order_operators = True
    # Guarded calls go on under it; under any other mode they clone their inputs.
    only_watches = True

    def __init__(
        self, notes: Notes | None, before: Callable[[list[Tensor]], None] | None = None
    ) -> None:
        super().__init__()
        self._notes = notes
        self._before = before

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it would without us: its regions are opaque."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Go without a wrapper that imports the compiler; `never_compile` below does its work."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = _quiet.get(id(func))
        if run is not None:
            return run(*args, **kwargs) if kwargs else run(*args)
        plan = _plan(func)
        if plan.written:
            return self._write(func, plan, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        # A view matters if it was made without gradients, and not by backward itself.
        if plan.views or (
            plan.view and not torch.is_grad_enabled() and compat.current_node() is None
        ):
            self._note_view(func, plan, args, result)
        return result

    def _write(self, func: Any, plan: _Plan, args: Any, kwargs: dict[str, Any]) -> Any:
        if plan.training >= 0 and not args[plan.training]:
            return func(*args, **kwargs)
        written = _written(plan, args, kwargs)
        if self._before is not None and not plan.custom and compat.current_node() is not None:
            self._before(written)
        if plan.counted:
            result = func(*args, **kwargs)
            versions = _versions(written, 1)
        else:
            before = _versions(written)
            # What such an operation is made of must count as it does without a mode around it.
            with compat.counting():
                result = func(*args, **kwargs)
            versions = _versions(written)
            for n, version in enumerate(before):
                if versions[n] == version:
                    versions[n] = None  # it is not counted
        if self._notes is None:
            return result
        place = place_of_write(_getframe(1).f_back)
        for tensor, version in zip(written, versions, strict=True):
            if version is not None or not plan.custom:  # else it was not written
                _note_write(self._notes, tensor, func, version, place)
        return result

    def _note_view(self, func: Any, plan: _Plan, args: Any, result: Any) -> None:
        shown = result if plan.view else next((a for a in args if isinstance(a, Tensor)), None)
        if isinstance(shown, Tensor) and self._notes is not None:
            code, offset, _ = place_of_write(_getframe(1).f_back)
            try:
                key = view_key(shown, many=plan.views)
                self._notes.view(key, func, code, offset, compat.pin_storage(shown))
            except (RuntimeError, NotImplementedError):  # as in _note_write
                return


def _note_write(
    notes: Notes, tensor: Tensor, func: Any, version: int | None, place: tuple[Any, int, str]
) -> None:
    code, offset, step = place
    pin = functools.partial(compat.pin_storage, tensor)
    try:
        notes.write(compat.storage_of(tensor), func, code, offset, step, version, pin)
    except (RuntimeError, NotImplementedError):  # no storage: sparse, opaque
        return


def _versions(tensors: list[Tensor], more: int = 0) -> list[int | None]:
    found: list[int | None] = []
    for tensor in tensors:
        try:
            found.append(compat.version_of(tensor) + more)
        except RuntimeError:  # an inference tensor counts nothing
            found.append(None)
    return found


def view_key(view: Tensor, *, many: bool) -> Any:
    """Return what a view is known by: its place in its storage, or one of many by its storage."""
    storage = compat.storage_of(view)
    if many:
        return storage
    with compat.interception_off():
        return (storage, view.storage_offset(), tuple(view.shape))


def _written(plan: _Plan, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for position, name in plan.written:
        value = args[position] if 0 <= position < len(args) else kwargs.get(name)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                found.append(item)  # noqa: PERF401
    return found


compat.never_compile(
    WriteMode.__torch_dispatch__,
    WriteMode._write,  # noqa: SLF001  of this very module
    WriteMode._note_view,  # noqa: SLF001
    _written,
    _note_write,
    _plan,
    _read,
    _versions,
    view_key,
)
