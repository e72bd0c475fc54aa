"""Views of a handle: recognised, recorded and made again on the copy."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from safemodule._compat import interception_off, is_alias, set_grad_enabled, swap
from safemodule._state import Family, View, root_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT: Final = type("PARENT", (), {"__repr__": lambda _: "PARENT", "__slots__": ()})()
# Index tensors up to this size are copied when a view is made; of others only the shape can matter.
_SMALL: Final = 64
_CONSTANT: Final = frozenset(
    {int, float, bool, str, type(None), type(...), torch.dtype, torch.Size}
)


def handles_in(kind: type, args: Any, kwargs: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield the handles among the arguments of one call, lists and tuples included."""
    for arg in args:
        if type(arg) is kind:
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from handles_in(kind, arg)
    if kwargs:
        yield from handles_in(kind, kwargs.values())


def adopt(kind: type, out: Any, func: Any, args: Any, kwargs: dict[str, Any] | None) -> None:
    """Make every tensor of a result that shares memory with a handle a view handle."""
    cls = type(out)
    if cls is Tensor:
        _adopt_tensor(kind, out, func, args, kwargs, ())
    elif cls is not torch.Size and isinstance(out, (list, tuple)):
        _adopt_items(kind, out, func, args, kwargs, ())


def _adopt_items(
    kind: type, out: Any, func: Any, args: Any, kwargs: Any, index: tuple[int, ...]
) -> None:
    for i, item in enumerate(out):
        if type(item) is Tensor:
            _adopt_tensor(kind, item, func, args, kwargs, (*index, i))
        elif isinstance(item, (list, tuple)):
            _adopt_items(kind, item, func, args, kwargs, (*index, i))


def _adopt_tensor(
    kind: type, out: Any, func: Any, args: Any, kwargs: Any, index: tuple[int, ...]
) -> None:
    for handle in handles_in(kind, args, kwargs):
        if is_alias(handle, out):
            # A function may also return one of its other arguments, which is nobody's view.
            if not _is_argument(out, args, kwargs):
                make_view(kind, out, handle, func, args, kwargs, index)
            return


def _is_argument(out: Any, args: Any, kwargs: Any) -> bool:
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if arg is out or (isinstance(arg, (list, tuple)) and any(item is out for item in arg)):
            return True
    return False


def make_view(
    kind: type,
    out: Any,
    parent: Any,
    func: Any,
    args: Any,
    kwargs: dict[str, Any] | None,
    index: tuple[int, ...] = (),
    *,
    listed: bool = False,
) -> None:
    """Turn the plain tensor `out`, which `func` made of `parent`, into a view handle.

    `listed`: the family knows it already.
    """
    state = parent._safemodule
    if type(state) is View:
        family, above = state.family, state
    else:
        family, above = family_of(parent, state), None
    frozen: list[Any] = []
    for arg in args:
        if arg is parent:
            frozen.append(PARENT)
        elif type(arg) in _CONSTANT:  # most: 0.2 us less each than `_freeze`
            frozen.append(arg)
        else:
            frozen.append(_freeze(kind, arg, parent))
    named = {k: _freeze(kind, a, parent) for k, a in kwargs.items()} if kwargs else {}
    if index and family.root.private:
        with interception_off():
            alone = single(out, parent)
            if alone is not out:
                swap(out, alone)
    state = View(family, above, func, frozen, named, index, torch.is_grad_enabled())
    if above is not None and not parent._is_view():
        state.keeps = parent
    out.__class__ = kind
    out._safemodule = state
    if not listed:
        family.add(out)


def family_of(handle: Any, state: Any) -> Family:
    """Return the family of a handle; it is made with the first view."""
    root = root_of(handle, state)
    family = root.family and root.family()
    if family is None:
        family = Family(handle, root)
        root.family = weakref.ref(family)
    return family


def _freeze(kind: type, arg: Any, parent: Any) -> Any:
    cls = type(arg)
    if arg is parent:
        return PARENT
    if isinstance(arg, list):  # a stand-in of the caller's list too
        return [_freeze(kind, item, parent) for item in arg]
    if isinstance(arg, slice):
        bounds: tuple[Any, ...] = (arg.start, arg.stop, arg.step)
        if all(type(i) in _CONSTANT for i in bounds):
            return arg
        return slice(*(int(i) if isinstance(i, Tensor) else i for i in bounds))
    if isinstance(arg, tuple) and cls is not torch.Size:
        return tuple([_freeze(kind, item, parent) for item in arg])
    if not isinstance(arg, Tensor):
        return arg
    with interception_off():
        if arg.ndim == 0 or (not arg.is_floating_point() and arg.numel() <= _SMALL):
            return arg.detach().clone()
        # What else a view takes from a tensor (`view_as`, `expand_as`, `type_as`) is its shape and
        # dtype: one element stands for it.
        return arg.detach().new_empty(()).expand(arg.shape)


def _thaw(arg: Any, parent: Tensor) -> Any:
    if arg is PARENT:
        return parent
    cls = type(arg)
    if cls is list or cls is tuple:
        return cls([_thaw(item, parent) for item in arg])
    return arg


def replay(view: View, parent: Tensor) -> Tensor:
    """Make a view again, of another parent, in the grad mode it was made in.

    Interception must be off; the caller restores the grad mode.
    """
    set_grad_enabled(view.grad)
    args = [_thaw(arg, parent) for arg in view.args]
    kwargs = {key: _thaw(arg, parent) for key, arg in view.kwargs.items()}
    out = view.func(*args, **kwargs)
    if view.index:
        for i in view.index:
            out = out[i]
        if type(out) is Tensor:  # not a view that the interception has just recorded
            out = single(out, parent)
    return out


def single(out: Tensor, parent: Tensor) -> Tensor:
    """Return the same view as the result of a function of one output.

    Autograd refuses to write what `unbind`, `chunk` and `split` return, and its siblings.
    """
    if parent.is_nested:  # it has no strides
        return out
    return parent.as_strided(out.size(), out.stride(), out.storage_offset())


def replay_chain(view: View, handle: Tensor) -> Tensor:
    """Make a view again from the handle down, through the views that may be gone by now."""
    chain = [view]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    before = torch.is_grad_enabled()
    try:
        out = handle
        for step in reversed(chain):
            out = replay(step, out)
    finally:
        set_grad_enabled(before)
    return out
