"""Explains PyTorch's own error, about a value that was saved without our hooks.

Before the block began, that is, or where hooks do not reach. PyTorch says type, shape and versions,
not which value; so the graph is searched for the node whose saved value raises the same words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from safemodule import _explain_compat as compat
from safemodule._explain_backward import explain_saved
from safemodule._explain_hooks import Saved

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
_RUN_BACKWARD: Final = compat.run_backward.__code__


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
        if innermost.f_code is _RUN_BACKWARD:
            roots = list(innermost.f_locals.get("t_outputs", ()))
        trace = trace.tb_next
    expected = int(words["expected"])
    for node in _nodes(roots):
        name = _failing(node, str(error))
        if name is None:
            continue
        tensor = _value(node, name, int(words["now"]), words["shape"], expected)
        if tensor is not None:
            logs = notes.recent(compat.storage_of(tensor))
            saved = Saved(tensor, expected, logs[0] if logs else None, 0, None, -1, None, None)
            writes = [w for log in logs for w in log.since(0) if (w.last or 0) > expected]
            return explain_saved(saved, node, name, str(error), innermost, writes)
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
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                getattr(node, name)
            except RuntimeError as error:
                if _core(str(error)) == _core(message):
                    return name.removeprefix("_saved_")
            except Exception:  # noqa: BLE001, S112  a reader of the user's own
                continue
    return None


def _core(message: str) -> str:
    return message.partition(" Hint:")[0]


def _value(node: Any, name: str, now: int, shape: str, expected: int) -> Tensor | None:
    """Return the value that a node saved: what a hook is given, set after the fact.

    It stays as forbidden as it was: reading it again raises again.
    """
    raw: Any = getattr(node, f"_raw_saved_{name.removeprefix('saved_')}", None)
    found: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alias = compat.make_alias(Tensor, tensor)
        found.append(alias)
        return alias

    def unpack(tensor: Tensor) -> Tensor:
        if compat.version_of(tensor) != expected:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been "
                "modified by an inplace operation"
            )
        return tensor

    for one in raw if isinstance(raw, (list, tuple)) else (raw,):
        try:
            one.register_hooks(pack, unpack)
        except (RuntimeError, AttributeError):  # nothing saved, hooks of somebody else
            continue
    wanted = [
        t for t in found if compat.version_of(t) == now and ", ".join(map(str, t.shape)) == shape
    ]
    return wanted[0] if wanted else None
