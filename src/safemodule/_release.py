"""The way out of a guarded call: every handle in the result becomes a plain tensor."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from safemodule._call import version_of
from safemodule._compat import interception_off, is_alias, pytree_node
from safemodule._containers import (
    KEYED,
    attributes_of,
    is_guarded_class,
    items_of,
    plain_copy,
    put_item,
    was_changed,
)
from safemodule._state import Root, View, handle_and_root
from safemodule._tensor import FrozenTensor, make_plain
from safemodule._views import replay_chain

if TYPE_CHECKING:
    from safemodule._call import Call


class Release:
    """Walks the result of one call.

    The containers that the module made are kept, their entries replaced in place: the module may
    have kept them too. The caller's containers come back as themselves where nothing changed.
    """

    __slots__ = ("_call", "_done", "_inputs", "_kept", "_originals", "_roots")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._done: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that ids in `_done` stay theirs
        self._originals = {id(made): x for x, made in call.stand_ins.values()}
        self._roots: set[int] | None = None
        self._inputs: dict[int, Any] = {}

    def value(self, out: Any) -> Any:
        """Return the plain form of one result, or part of one."""
        cls = type(out)
        if cls is Tensor:
            return self._cloned(out) if self._call.clones else out
        if out is None or cls in (int, float, bool, str):
            return out
        known = self._done.get(id(out))
        if known is not None:
            return known
        if cls is FrozenTensor:
            result = self._handle(out)
        elif isinstance(out, (Tensor, Module)):
            result = self._cloned(out) if self._call.clones else out
        else:
            result = self._container(out, cls)
        self._done[id(out)] = result
        self._kept.append(out)
        return result

    # -- tensors -----------------------------------------------------------------------------------

    def _cloned(self, out: Any) -> Any:
        known = self._call.clones.get(id(out))
        if known is None or known[1] is not out:
            return out
        original, clone, version = known
        return original if version is not None and version_of(clone) == version else out

    def _handle(self, out: Any) -> Any:
        state = out._safemodule
        handle, root = handle_and_root(out)
        if id(root) in self._call.passed or not (root.over or self._is_own(root)):
            return out  # of an outer call that is still running
        source = root.source
        if source is not None and id(source) in self._inputs:  # frozen here, and released by now
            source = self._inputs[id(source)]
            if source is not None and _moved_on(source, handle):
                source = None
        unwritten = not root.private or (
            self._call.plan.snapshot and not root.written and root.pinned is None
        )
        if not unwritten or source is None:
            return self._made_plain(out, root)
        if type(source) is not FrozenTensor:
            return source if type(state) is not View else self._made_plain(out, root)
        entered = root.origin is None and self._is_own(root)
        if _moved_on(source, handle):  # written since: `out` keeps the value it had, as its twin
            _become_twin(root, handle, source)
            return self._handle(out)
        outer = source if type(state) is not View else replay_chain(state, source)
        # The argument of this call is the end; a handle that was frozen inside may have another
        # before it.
        return outer if entered else self.value(outer)

    def _made_plain(self, out: Any, root: Root) -> Any:
        self._inputs[id(out)] = root.source  # for what was frozen of it, see `_handle`
        return make_plain(out)

    def _is_own(self, root: Any) -> bool:
        if self._roots is None:
            # Before the first handle is made plain.
            self._roots = {
                id(handle_and_root(made)[1].first())
                for _, made, _ in self._call.entries.values()
                if type(made) is FrozenTensor
            }
        return id(root.first()) in self._roots

    # -- containers --------------------------------------------------------------------------------

    def _container(self, out: Any, cls: type) -> Any:
        if is_guarded_class(cls):
            return self._guarded(out)
        if issubclass(cls, tuple):
            return self._tuple(out, cls)
        original = self._originals.get(id(out))
        if issubclass(cls, KEYED):
            self._done[id(out)] = out
            for key, value in items_of(out):
                new = self.value(value)
                if new is not value:
                    put_item(out, key, new)
            self._attributes(out)
            return out
        if issubclass(cls, (collections.UserDict, collections.UserList)) or (
            dataclasses.is_dataclass(cls)
        ):
            self._done[id(out)] = out
            changed = self._attributes(out)
            if original is not None and not changed:
                return original
            return self._unless_same(out, original)
        node = pytree_node(cls)
        if node is not None:
            children, context = node.flatten_fn(out)
            items = [self.value(child) for child in children]
            if original is not None:
                was, _ = node.flatten_fn(original)
                if _same(items, was):
                    return original
            if not _same(items, children):
                return node.unflatten_fn(items, context)
        return out

    def _unless_same(self, out: Any, original: Any) -> Any:
        if original is None:
            return out
        now, was = dict(attributes_of(out)), dict(attributes_of(original))
        same = now.keys() == was.keys() and all(now[name] is was[name] for name in now)
        return original if same else out

    def _guarded(self, out: Any) -> Any:
        original = self._originals.get(id(out))
        twin = plain_copy(out)
        self._done[id(out)] = twin
        if isinstance(twin, KEYED):
            for key, value in items_of(out):
                new = self.value(value)
                if new is not value:
                    put_item(twin, key, new)
        self._attributes(twin)
        if original is not None and not was_changed(out) and _equal(twin, original):
            return original
        return twin

    def _tuple(self, out: Any, cls: Any) -> Any:
        items = [self.value(item) for item in out]
        original = self._originals.get(id(out))
        if original is not None and _same(items, original):
            return original
        if _same(items, out):
            return out
        if cls is tuple:
            return tuple(items)
        if issubclass(cls, PackedSequence):  # its constructor looks at values
            return tuple.__new__(cls, items)
        make = getattr(cls, "_make", cls)  # a namedtuple; else a struct sequence, or a subclass
        return make(items)

    def _attributes(self, out: Any) -> bool:
        changed = False
        for name, value in attributes_of(out):
            new = self.value(value)
            if new is not value:
                object.__setattr__(out, name, new)
                changed = True
        return changed


def _moved_on(source: Any, handle: Any) -> bool:
    """Tell whether a handle's source, itself a handle, is another value or shape by now."""
    with interception_off():
        if source.is_nested or handle.is_nested:  # they have no strides
            return not is_alias(source, handle)
        return not (
            is_alias(source, handle)
            and source.dtype == handle.dtype
            and source.size() == handle.size()
            and _strides(source) == _strides(handle)
            and source.storage_offset() == handle.storage_offset()
        )


def _strides(tensor: Any) -> list[int]:
    """Return the strides that mean something: an alias may have others where the size is 1."""
    sizes = tensor.size()
    return [stride for size, stride in zip(sizes, tensor.stride(), strict=True) if size != 1]


def _become_twin(root: Root, handle: Any, source: Any) -> None:
    """Let a handle whose source has moved on keep an earlier value of what the source stands for."""
    _, now = handle_and_root(source)
    stands_for = now.source
    with interception_off():
        alike = stands_for is not None and stands_for.requires_grad == handle.requires_grad
    if not alike or _moved_on(stands_for, handle):  # `x.data` has no gradient, and `x` has
        stands_for = None
    root.source = stands_for
    root.plan, root.owner, root.argument = now.plan, now.owner, now.argument
    root.origin, root.over = now, now.over


def _same(items: Any, originals: Any) -> bool:
    return len(items) == len(originals) and all(
        a is b for a, b in zip(items, originals, strict=True)
    )


def _equal(twin: Any, original: Any) -> bool:
    """Tell whether two containers of one class hold the very same objects."""
    if isinstance(twin, KEYED):
        now, was = list(items_of(twin)), list(items_of(original))
        if len(now) != len(was) or any(
            a != b or x is not y for (a, x), (b, y) in zip(now, was, strict=True)
        ):
            return False
    now_named, was_named = dict(attributes_of(twin)), dict(attributes_of(original))
    return now_named.keys() == was_named.keys() and all(
        now_named[name] is was_named[name] for name in now_named
    )
