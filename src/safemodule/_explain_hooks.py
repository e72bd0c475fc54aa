"""The saved-tensor hooks of `explain()`: note each save, compare versions when backward reads.

PyTorch compares versions itself, but not under hooks; so the comparison is made here.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import Tensor, nn

from safemodule import _explain_compat as compat
from safemodule._compat import interception_off
from safemodule._explain_frames import Place, place_of_save
from safemodule._explain_notes import Log, Notes, tick
from safemodule._explain_values import checksum, same
from safemodule._tensor import FrozenTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["SaveHooks", "Saved", "probing"]

# Without an argument: a thread of the engine runs hooks with no frame below them.
_getframe: Final = sys._getframe
_make_alias: Final = compat.make_alias
_storage_of: Final = compat.storage_of


class Saved(NamedTuple):
    """A value that autograd saved. The graph holds it, and nothing else does."""

    tensor: Tensor
    """The value. An alias, since the tensor itself may hold the node that holds this: a cycle."""
    version: int
    """The version that was saved."""
    log: Log | None
    """The writes to its storage; None where it has no storage."""
    moment: int
    """When it was saved (see `tick`)."""
    code: Any
    offset: int
    module: Any
    """Weak reference to the innermost module whose call saved it, or None."""
    checksum: Any

    @property
    def place(self) -> Place:
        """The user's line that saved it."""
        return Place(self.code, self.offset)


_new: Final = tuple.__new__


class _Probe(threading.local):
    """While a node is searched for its argument, overwritten values are listed, not refused."""

    found: list[Saved] | None = None
    frame: FrameType | None = None
    """The frame that reads the node."""


probing: Final = _Probe()


class SaveHooks:
    """One pair of hooks.

    Args:
        notes: Where saves are noted.
        overwritten: Given a value that was overwritten and what reads it, returns the error to
            raise, or None if the reader does not use it.
        check_values: Compare checksums too.
    """

    __slots__ = ("_check", "_notes", "_overwritten")

    def __init__(
        self,
        notes: Notes,
        overwritten: Callable[[Saved, FrameType | None], Exception | None],
        *,
        check_values: bool,
    ) -> None:
        self._notes = notes
        self._overwritten = overwritten
        self._check = check_values

    def pack(self, tensor: Tensor) -> Saved:
        """Keep a value that autograd saves."""
        kind = type(tensor)
        if kind is Tensor:
            alias = _make_alias(Tensor, tensor)
            version = alias._version
        elif kind is nn.Parameter and tensor.is_leaf:
            alias = tensor  # no grad_fn, so no cycle; and `.data = ` is seen as PyTorch sees it
            version = alias._version
        else:
            alias = _alias_of_subclass(tensor)
            version = compat.version_of(tensor)
        try:
            log = self._notes.log_of_saved(_storage_of(tensor))
        except (RuntimeError, NotImplementedError):  # no storage: sparse, opaque
            log = None
        code, offset, module = place_of_save(_getframe().f_back)
        value = checksum(alias) if self._check else None
        return _new(Saved, (alias, version, log, tick(), code, offset, module, value))

    def unpack(self, saved: Saved) -> Tensor:
        """Hand a value to backward, if it still is what was saved."""
        tensor = saved[0]
        if compat.version_of(tensor) == saved[1] and (saved[7] is None or same(tensor, saved[7])):
            if type(tensor) is FrozenTensor:
                # Of a guarded input: a recomputing checkpoint or a custom backward may write it.
                with interception_off():
                    return tensor.clone()
            return tensor
        if probing.found is not None:
            if _getframe().f_back is probing.frame:  # not through hooks of somebody else
                probing.found.append(saved)
            return tensor
        error = self._overwritten(saved, _getframe().f_back)
        if error is not None:
            compat.empty_queue_at_exit()
            raise error
        return tensor


def _alias_of_subclass(tensor: Tensor) -> Tensor:
    if compat.has_own_dispatch(type(tensor)):
        return tensor.detach()  # a wrapper: only its own code knows what an alias of it is
    alias = _make_alias(Tensor, tensor)
    if type(tensor) is FrozenTensor:  # marked, for `unpack`
        alias.__class__ = FrozenTensor
    return alias


compat.never_compile(SaveHooks.pack, SaveHooks.unpack, _alias_of_subclass)
