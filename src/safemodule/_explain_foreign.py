"""Explains PyTorch's own error, about a value that was saved without our hooks.

Before the block began, that is, or where hooks do not reach. PyTorch says type, shape and versions,
not which value; so the graph is searched for the node whose saved value raises the same words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from safemodule import _explain_compat as compat
from safemodule._explain_backward import explain_saved, overwritten
from safemodule._explain_hooks import Saved, SaveHooks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from safemodule._explain_message import Explanation
    from safemodule._explain_notes import Notes

__all__ = ["explain_foreign"]

_SENTENCE: Final = re.compile(
    r"modified by an inplace operation: \[.*?\[(?P<shape>[^\]]*)\]\].*"
    r"is at version (?P<now>\d+); expected version (?P<expected>\d+)",
    re.DOTALL,
)


def explain_foreign(
    error: RuntimeError, trace: TracebackType | None, notes: Notes
) -> Explanation | None:
    """Return an explanation of PyTorch's own in-place error, None if it is another one."""
    words = _SENTENCE.search(str(error))
    if words is None:
        return None
    innermost = None
    roots: list[Any] = []
    while trace is not None:
        innermost = trace.tb_frame
        if innermost.f_code is compat.RUN_BACKWARD:
            roots = list(innermost.f_locals.get("t_outputs", ()))
        trace = trace.tb_next
    for node in _nodes(roots):
        name = _failing(node, str(error))
        if name is None:
            continue
        found = _value(node, name, int(words["now"]), words["shape"], int(words["expected"]), notes)
        if found is not None:
            saved, argument = found
            writes = saved.log.since(saved.moment) if saved.log is not None else []
            return explain_saved(saved, node, argument, str(error), innermost, writes)
    return None


def _nodes(roots: list[Any]) -> Iterator[Any]:
    """Yield the nodes of a graph, from its end."""
    stack = [
        root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None) for root in roots
    ]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(following for following, _ in node.next_functions)


def _failing(node: Any, message: str) -> str | None:
    """Return the saved value of a node that raises PyTorch's message, None if there is none."""
    for name in compat.saved_attributes(node):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if _core(str(error)) == _core(message):
                return compat.saved_name(name)
        except Exception:  # noqa: BLE001, S112  a reader of the user's own
            continue
    return None


def _core(message: str) -> str:
    return message.partition(" Hint:")[0]


def _value(
    node: Any, name: str, now: int, shape: str, expected: int, notes: Notes
) -> tuple[Saved, str] | None:
    """Return the value that a node saved, and which of the node's values it is.

    It is what a hook is given, set after the fact. Reading it again fails again: in our own hook.
    """
    hooks = SaveHooks(notes, overwritten, check_values=False)
    kept: list[Saved] = []

    def pack(tensor: Tensor) -> Saved:
        kept.append(_saved(compat.make_alias(Tensor, tensor), expected, notes))
        return kept[-1]

    raw = compat.raw_saved(node, name)
    many = isinstance(raw, (list, tuple))
    for position, one in enumerate(raw if many else (raw,)):
        kept.clear()
        try:
            one.register_hooks(pack, hooks.unpack)
        except (RuntimeError, AttributeError):  # nothing saved, or hooks of somebody else
            continue
        tensor = kept[0].tensor
        if compat.version_of(tensor) == now and ", ".join(map(str, tensor.shape)) == shape:
            return kept[0], f"{name}[{position}]" if many else name
    return None


def _saved(tensor: Tensor, version: int, notes: Notes) -> Saved:
    """Return what our hook would have kept, with the writes beyond a version as those since."""
    log = next(iter(notes.recent(compat.storage_of(tensor))), None)
    earlier = [w.last_tick for w in log.since(0) if (w.last or 0) <= version] if log else []
    return Saved(tensor, version, log, max(earlier, default=0), None, -1, None, None)
