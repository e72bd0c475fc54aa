"""The notes of `explain()`: who wrote which storage, when. Pure bookkeeping, no tensor anywhere.

A storage is known by its address. As an address is reused when its storage dies, what is noted for
a storage lives in a `Log` that the saved values of that storage hold, and dies with the last one:
the notes are never larger than the graph. Writes to storages of which nothing is saved go to a
small ring, for values that autograd saved without our hooks; there a pin keeps the address.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["Log", "Notes", "Write", "tick"]

# Distinct lines kept for one storage: more have never helped anybody. A loop is one of them.
_SITES_MAX: Final = 32
# Storages kept of which nothing is saved, the most recently written.
_RECENT_MAX: Final = 1024
_SWEEP_MIN: Final = 1024

# Orders saves and writes in time, whatever version counters they are counted by.
tick: Final = itertools.count(1).__next__


class Write:
    """All writes to one storage by one op at one place: the first, the last, and their number."""

    __slots__ = (
        "code",
        "count",
        "first",
        "first_tick",
        "last",
        "last_tick",
        "offset",
        "op",
        "step",
    )

    def __init__(
        self, op: Any, code: CodeType | None, offset: int, step: str, version: int | None, now: int
    ) -> None:
        self.op = op
        self.code = code
        self.offset = offset
        self.step = step
        """The optimiser that wrote, such as ``"SGD.step"``; ``""`` for none."""
        self.first = self.last = version
        """Version that the first and the last write left; None for a write that is not counted."""
        self.first_tick = self.last_tick = now
        self.count = 1


class Log:
    """The writes to one storage since something of it was saved."""

    __slots__ = ("__weakref__", "_pin", "_sites", "dropped")

    def __init__(self, pin: Any = None) -> None:
        self._pin = pin
        # Made when the first write comes: most saved values are never written.
        self._sites: dict[tuple[int, int, int], Write] | None = None
        self.dropped = 0
        """Writes from further places, beyond the number kept."""

    def add(
        self, op: Any, code: CodeType | None, offset: int, step: str, version: int | None
    ) -> None:
        """Note one write; `version` is the one it leaves behind."""
        sites = self._sites
        if sites is None:
            sites = self._sites = {}
        # id(): hashing a code object reads all of its instructions. Write keeps both alive.
        key = (id(op), id(code), offset)
        write = sites.get(key)
        if write is not None:
            write.last = version
            write.last_tick = tick()
            write.count += 1
        elif len(sites) < _SITES_MAX:
            sites[key] = Write(op, code, offset, step, version, tick())
        else:
            self.dropped += 1

    def since(self, moment: int) -> list[Write]:
        """Return what has written after `moment` (see `tick`), in the order of their last writes."""
        late = [w for w in (self._sites or {}).values() if w.last_tick > moment]
        return sorted(late, key=lambda w: w.last_tick)


class Notes:
    """All logs of one `explain()` block."""

    __slots__ = ("_recent", "_saved", "_sweep_at", "_views")

    def __init__(self) -> None:
        # Plain references, swept now and then: a WeakValueDictionary costs 2 us for each entry.
        self._saved: dict[int, ref[Log]] = {}
        self._sweep_at = _SWEEP_MIN
        # Ordered dicts, as taking out the oldest is one step that no thread can disturb.
        self._recent: OrderedDict[int, Log] = OrderedDict()
        self._views: OrderedDict[Any, tuple[Any, CodeType | None, int, Any]] = OrderedDict()

    def log_of_saved(self, storage: int) -> Log:
        """Return the log of a storage of which a value is being saved; the caller holds it."""
        known = self._saved.get(storage)
        log = known() if known is not None else None
        if log is None:
            log = Log()
            self._saved[storage] = ref(log)
            if len(self._saved) > self._sweep_at:
                self._sweep()
        return log

    def _sweep(self) -> None:
        for storage, known in list(self._saved.items()):
            if known() is None and self._saved.get(storage) is known:
                del self._saved[storage]
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self._saved))

    def write(
        self,
        storage: int,
        op: Any,
        code: CodeType | None,
        offset: int,
        step: str,
        version: int | None,
        pin: Callable[[], Any],
    ) -> None:
        """Note that `op` has written a storage.

        Args:
            storage: Its address.
            op: The operation.
            code: The function of the user's that called it, None for none.
            offset: Where in it.
            step: The optimiser whose step this is, ``""`` for none.
            version: The version that the write leaves, None for one that is not counted.
            pin: Makes something that keeps the address from being used again, without keeping the
                memory; held as long as the note.
        """
        known = self._saved.get(storage)
        log = known() if known is not None else None
        if log is None:
            recent = self._recent
            log = recent.pop(storage, None) or Log(pin())
            recent[storage] = log  # put back last: the most recent survive
            if len(recent) > _RECENT_MAX:
                recent.popitem(last=False)
        log.add(op, code, offset, step, version)

    def recent(self, storage: int) -> list[Log]:
        """Return what is known of a storage that autograd saved without our hooks."""
        known = self._saved.get(storage)
        logs = (known() if known is not None else None, self._recent.get(storage))
        return [log for log in logs if log is not None]

    def view(self, key: Any, op: Any, code: CodeType | None, offset: int, pin: Any) -> None:
        """Note where a view was made that autograd will not let be written; `pin` as in `write`."""
        views = self._views
        views.pop(key, None)
        views[key] = (op, code, offset, pin)
        if len(views) > _RECENT_MAX:
            views.popitem(last=False)

    def view_site(self, key: Any) -> tuple[Any, CodeType | None, int] | None:
        """Return op, code and offset of the view that was noted under `key`."""
        found = self._views.get(key)
        return found[:3] if found is not None else None
