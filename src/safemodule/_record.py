"""The record: what was written, where, how often.

A log aggregates by site, so a loop that writes a million times costs one row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from safemodule import _table
from safemodule._table import describe

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["Kind", "Mutation", "MutationLog", "Site", "active_logs", "describe", "record"]

Kind = Literal["tensor", "container", "export", "unseen"]
# What makes two writes the same row: filename, lineno, op, argument, module.
Site = tuple[str, int, str, str, str]

_VERBS: Final = {"tensor": "wrote", "container": "changed", "export": "handed out the memory of"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One write, or all writes of one site: strings and numbers only, never a tensor.

    Attributes:
        op: What wrote, such as ``"add_"`` or ``"__setitem__"``.
        argument: Path of the argument, such as ``"batch['mask']"``.
        module: Qualified name of the module's class, or of the function.
        shape: Shape of the written input; ``()`` for an entry of a container.
        dtype: Its dtype, such as ``"bool"``; ``""`` for an entry of a container.
        device: Its device, such as ``"cuda:0"``; ``""`` for an entry of a container.
        filename: File of the line that wrote: the user's own, not one of torch.
        lineno: Number of that line.
        function: Name of the function it stands in.
        line: The source line, ``""`` where it is not known.
        bytes_copied: Bytes copied to protect the caller, over all ``count`` writes.
        count: How many writes this stands for.
        kind: ``"tensor"``; ``"container"`` for a key, item or field of the caller's container;
            ``"export"`` for raw memory handed out, which may be written later by anyone;
            ``"unseen"`` for a write that PyTorch's Python layer did not see, found when the call
            returned: the line is that of the call's ``forward``.

    Example:
        >>> from safemodule import Mutation
        >>> write = Mutation(
        ...     op="add_",
        ...     argument="x",
        ...     module="net.Net",
        ...     shape=(2, 3),
        ...     dtype="float32",
        ...     device="cpu",
        ...     filename="net.py",
        ...     lineno=7,
        ...     function="forward",
        ...     line="x.add_(1)",
        ... )
        >>> print(write)
        add_ wrote argument x (float32[2, 3] cpu) of net.Net at net.py:7 in forward: x.add_(1)
    """

    op: str
    argument: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    filename: str
    lineno: int
    function: str
    line: str
    bytes_copied: int = 0
    count: int = 1
    kind: str = "tensor"

    @property
    def site(self) -> Site:
        """What equal writes share, as (filename, lineno, op, argument, module)."""
        return (self.filename, self.lineno, self.op, self.argument, self.module)

    @property
    def tensor(self) -> str:
        """The tensor in words, such as ``bool[1024, 21] cuda:0``; ``""`` for a container."""
        return describe(self.shape, self.dtype, self.device)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict that JSON can hold: the shape is a list."""
        return {**asdict(self), "shape": list(self.shape)}

    def __str__(self) -> str:
        tensor = f" ({self.tensor})" if self.dtype else ""
        module = f" of {self.module}" if self.module else ""
        line = f": {self.line}" if self.line else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        verb = _VERBS.get(self.kind, _VERBS["tensor"])
        return (
            f"{self.op} {verb} argument {self.argument}{tensor}{module}"
            f" at {self.filename}:{self.lineno} in {self.function}{line}{times}"
        )


class _Rows:
    """Writes aggregated by site, in the order in which the sites were first seen."""

    __slots__ = ("_lock", "_rows")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The first write of a site, with the bytes and the count of all of them.
        self._rows: dict[Site, tuple[Mutation, int, int]] = {}

    def bump(self, site: Site, bytes_copied: int) -> bool:
        """Count one more write of a known site; False where the site is new here."""
        with self._lock:
            row = self._rows.get(site)
            if row is None:
                return False
            first, total, count = row
            self._rows[site] = (first, total + bytes_copied, count + 1)
            return True

    def add(self, mutation: Mutation) -> None:
        site = mutation.site
        with self._lock:
            first, total, count = self._rows.get(site, (mutation, 0, 0))
            self._rows[site] = (first, total + mutation.bytes_copied, count + mutation.count)

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def snapshot(self) -> tuple[Mutation, ...]:
        with self._lock:
            rows = tuple(self._rows.values())
        return tuple(
            replace(first, bytes_copied=total, count=count) for first, total, count in rows
        )


class MutationLog(Sequence[Mutation]):
    """The writes seen by a `record` block: a live sequence of `Mutation`, one for each site.

    The same line writing the same argument again adds to ``count`` and ``bytes_copied`` of its
    record; shape, dtype and device are those of its first write. ``print(log)`` shows a table, and
    so does a notebook. Records that were read do not change any more: read again for newer counts.

    Example:
        >>> import torch
        >>> from safemodule import freeze_inputs, record
        >>> @freeze_inputs
        ... def shift(x):
        ...     return x.add_(1)
        >>> with record() as log:
        ...     print(log)
        ...     for _ in range(3):
        ...         y = shift(torch.zeros(2))
        No argument was written.
        >>> len(log), log[0].op, log[0].count, log[0].bytes_copied
        (1, 'add_', 3, 24)
    """

    __slots__ = ("_exports", "_writes")

    def __init__(self) -> None:
        self._writes = _Rows()
        self._exports = _Rows()

    @property
    def copies(self) -> tuple[Mutation, ...]:
        """Copies made because raw memory was handed out, as by ``x.numpy()`` or ``x.data_ptr()``.

        They are no mutations, as nobody may ever write that memory, and strict mode allows them.
        """
        return self._exports.snapshot()

    def add(self, mutation: Mutation) -> None:
        """Add a record; one of kind ``"export"`` goes to `copies`."""
        (self._exports if mutation.kind == "export" else self._writes).add(mutation)

    def bump(self, site: Site, bytes_copied: int, kind: str = "tensor") -> bool:
        """Count one more write of a site that is here already.

        Returns:
            False, and nothing is done, where the site is new.
        """
        return (self._exports if kind == "export" else self._writes).bump(site, bytes_copied)

    def clear(self) -> None:
        """Forget everything seen so far."""
        self._writes.clear()
        self._exports.clear()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the records as dicts that JSON can hold."""
        return [mutation.to_dict() for mutation in self]

    def __len__(self) -> int:
        return len(self._writes)

    @overload
    def __getitem__(self, index: int) -> Mutation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Mutation, ...]: ...
    def __getitem__(self, index: int | slice) -> Mutation | tuple[Mutation, ...]:
        return self._writes.snapshot()[index]

    # Sequence's own would take a snapshot at each step.
    def __iter__(self) -> Iterator[Mutation]:
        return iter(self._writes.snapshot())

    def __reversed__(self) -> Iterator[Mutation]:
        return reversed(self._writes.snapshot())

    def __repr__(self) -> str:
        return f"<MutationLog: {_table.total(tuple(self), self.copies)}>"

    def __str__(self) -> str:
        return _table.as_text(tuple(self), self.copies)

    def _repr_html_(self) -> str:
        return _table.as_html(tuple(self), self.copies)


# The logs of the `record` blocks around the running code, and those that see every thread.
_active: ContextVar[tuple[MutationLog, ...]] = ContextVar("safemodule_logs", default=())
_get_active = _active.get
_everywhere: tuple[MutationLog, ...] = ()
_lock: Final = threading.Lock()


def active_logs() -> tuple[MutationLog, ...]:
    """Return the logs that see what is written here."""
    return _get_active() + _everywhere


@contextmanager
def record() -> Generator[MutationLog, None, None]:
    """Record every write to an argument that is made inside the block.

    Blocks may be nested; each sees what is written inside it. A block sees the running thread or
    task and the tasks started in it, and no other threads.

    Yields:
        The log. It is live inside the block, and stays readable after it.

    Example:
        >>> import torch
        >>> from safemodule import freeze_inputs, record
        >>> @freeze_inputs
        ... def shift(x):
        ...     return x.add_(1)
        >>> with record() as log:
        ...     y = shift(torch.zeros(3))
        >>> [(m.op, m.argument, m.bytes_copied) for m in log]
        [('add_', 'x', 12)]
    """
    log = MutationLog()
    _active.set((*_active.get(), log))
    try:
        yield log
    finally:
        # Take out this log alone: blocks held open by generators need not end in order.
        _active.set(tuple(other for other in _active.get() if other is not log))


@contextmanager
def record_everywhere() -> Generator[MutationLog, None, None]:
    """Record as `record` does, in every thread: for the command line and the pytest plugin.

    Yields:
        The log.
    """
    global _everywhere  # noqa: PLW0603 -- all threads of the process is what this is about
    log = MutationLog()
    with _lock:
        _everywhere = (*_everywhere, log)
    try:
        yield log
    finally:
        with _lock:
            _everywhere = tuple(other for other in _everywhere if other is not log)


for _public in (Mutation, MutationLog, record):
    _public.__module__ = "safemodule"
