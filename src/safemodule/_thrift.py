"""Copy the smaller side.

In a loop such as `x[i] = x[i - 1] * w` autograd saves a small view of the private copy in each turn, so
each write would have to move the whole copy. After two such moves the reads of small views pay
instead: an operation gets a copy of the view, and what it saves is that. Never more bytes than
writing the loop out of place.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from safemodule._compat import interception_off, modes_only_watch, saved_tensor_hooks
from safemodule._state import Root, View

_MOVES = 2
_SHARE = 4
# The roots whose small views are copied; empty nearly always, which is all that the hot path asks.
THRIFTY: dict[int, weakref.ref[Root]] = {}


def moved(root: Root) -> None:
    """Count a move of a private copy."""
    root.moves += 1
    if root.moves == _MOVES:
        key = id(root)
        THRIFTY[key] = weakref.ref(root, lambda _: THRIFTY.pop(key, None))


def kept_apart(kind: type, args: Any) -> Any:
    """Return the arguments of a reading call, handles as aliases where Python keeps saved tensors.

    `allow_mutation_on_saved_tensors` keeps the very object that is saved, which a redirect turns into
    the copy; an alias stays what it is.
    """
    if not torch.is_grad_enabled() or modes_only_watch() or saved_tensor_hooks() is None:
        return args
    with interception_off():
        return type(args)([arg[...] if type(arg) is kind else arg for arg in args])


def spared(kind: type, args: Any) -> Any:
    """Return the arguments of a reading call, small views of often moved copies replaced."""
    if not torch.is_grad_enabled():
        return args
    return type(args)([_spared(kind, arg) for arg in args])


def _spared(kind: type, arg: Any) -> Any:
    cls = type(arg)
    if cls is list or cls is tuple:
        return spared(kind, arg)
    if cls is not kind:
        return arg
    state = arg._safemodule
    if type(state) is not View or id(state.family.root) not in THRIFTY:
        return arg
    with interception_off():
        small = arg.numel() * _SHARE <= state.family.handle.numel()
        return arg.clone() if small else arg
