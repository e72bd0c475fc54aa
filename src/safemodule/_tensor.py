"""The handle: an alias of an input that is redirected to a copy before it is written."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from safemodule import _writes_pick as pick
from safemodule._compat import (
    COUNTS_TELL,
    dispatch_modes,
    forward_ad_active,
    interception_off,
    is_alias,
    run_plain,
    set_grad_enabled,
)
from safemodule._intercept import intercept, is_as_strided, retry, unmasked
from safemodule._location import Location
from safemodule._redirect import REDIRECTS, catch_up, redirect
from safemodule._state import Path, Plan, Root, View, handle_and_root, root_of
from safemodule._thrift import THRIFTY, kept_apart, spared
from safemodule._views import adopt, make_view
from safemodule._writes import EFFECTS, Effect, Kind, effect_of

_is_traced: Any = torch.compiler.is_dynamo_compiling  # 0.1 us cheaper than `is_compiling`
_get: dict[str, Any] = {
    name: getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_leaf", "grad", "grad_fn", "retains_grad")
}
_get_dict: Any = Tensor.__dict__["__dict__"].__get__
_set_dict: Any = Tensor.__dict__["__dict__"].__set__
_get_real: Any = Tensor.real.__get__  # type: ignore[attr-defined]
_set_real: Any = Tensor.real.__set__  # type: ignore[attr-defined]
_get_imag: Any = Tensor.imag.__get__  # type: ignore[attr-defined]
_set_imag: Any = Tensor.imag.__set__  # type: ignore[attr-defined]
_set_grad: Any = Tensor.grad.__set__  # type: ignore[attr-defined]
_unknown = Plan(
    name="<autograd>",
    positional=(),
    parameters=frozenset(),
    variadic="args",
    keywords=None,
    mutable=frozenset(),
    mode=None,
    snapshot=False,
    chained=False,
    where=Location("<autograd>", 0, ""),
)
# How a function goes through, asked once: run and done (it writes nothing and returns nothing that
# shares memory), or run and looked at, or the long way; or one of the first two unless it is given
# `out=`, as most functions of torch can be.
_LONG, _PURE, _VIEW, _PURE_OR_OUT, _VIEW_OR_OUT = range(5)
_WAYS: dict[Any, int] = {}


def _way_of(func: Any) -> int:
    effect = effect_of(func)
    way = _LONG
    if COUNTS_TELL and not is_as_strided(effect):
        if effect.kind is Kind.READ:
            way = _VIEW if effect.may_alias else _PURE
        elif effect.kind is Kind.WRITE and effect.written is pick.out:
            way = _VIEW_OR_OUT if effect.may_alias else _PURE_OR_OUT
    try:
        if func in EFFECTS:  # pragma: no branch -- a full table; lasting, see `effect_of`
            _WAYS[func] = way
    except TypeError:  # unhashable
        return _LONG
    return way


class FrozenTensor(Tensor):
    """A tensor whose in-place writes go to a private copy.

    Made by guarded calls and by `freeze`; it behaves as the tensor it stands for. Never made by
    calling this class.
    """

    _safemodule: Any

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_traced():  # a handle that crosses into a compiled region is a plain tensor there
            with interception_off():
                return func(*args, **(kwargs or {}))
        try:
            way = _WAYS[func]
        except (KeyError, TypeError):
            way = _way_of(func)
        if way > _VIEW:
            way = _LONG if kwargs and "out" in kwargs else way - _VIEW
        if way is _PURE and len(types) == 1:
            if THRIFTY:
                args = spared(cls, args)
            if dispatch_modes():
                args = kept_apart(cls, args)
            try:
                return (
                    run_plain(func, types, args, kwargs) if kwargs else run_plain(func, types, args)
                )
            except TypeError:
                return retry(cls, func, args, kwargs)
        if way is _VIEW and len(types) == 1:
            epoch = REDIRECTS[0]
            try:
                out = (
                    run_plain(func, types, args, kwargs) if kwargs else run_plain(func, types, args)
                )
            except TypeError:
                out = retry(cls, func, args, kwargs)
            if (
                type(out) is Tensor
                and not kwargs
                and type(args[0]) is cls
                and (len(args) < 3 or type(args[1]) is type(args[2]) is int)
            ):
                # `x[i]`, `x.t()`, `x.view(2, -1)`, `x.transpose(0, 1)`: 1 us less than `adopt`
                if is_alias(args[0], out):
                    make_view(cls, out, args[0], func, args, None)
                elif len(args) != 1:
                    adopt(cls, out, func, args, kwargs)
                else:
                    return out
            else:
                adopt(cls, out, func, args, kwargs)
            if REDIRECTS[0] != epoch or REDIRECTS[1]:
                catch_up(out)
            return out
        return intercept(cls, effect_of(func), func, types, args, kwargs)

    # -- what code asks most, without the way through torch ----------------------------------------

    @property
    def shape(self) -> torch.Size:
        return run_plain(_get["shape"], (), (self,))

    @property
    def dtype(self) -> torch.dtype:
        return run_plain(_get["dtype"], (), (self,))

    @property
    def device(self) -> torch.device:
        return run_plain(_get["device"], (), (self,))

    @property
    def ndim(self) -> int:
        return run_plain(_get["ndim"], (), (self,))

    # -- setters that torch does not route ---------------------------------------------------------

    @property
    def real(self) -> Tensor:
        return _get_real(self)

    @real.setter
    def real(self, value: Any) -> None:
        intercept(FrozenTensor, _REAL, _set_real, (FrozenTensor,), (self, value), {})

    @property
    def imag(self) -> Tensor:
        return _get_imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        intercept(FrozenTensor, _IMAG, _set_imag, (FrozenTensor,), (self, value), {})

    # -- the caller's identity ---------------------------------------------------------------------

    @property
    def is_leaf(self) -> bool:
        """True for a leaf of the caller's too: an optimiser may be built on it."""
        root = self._input()
        if root is not None and not root.private and root.source is not None:
            return root.source.is_leaf
        return run_plain(_get["is_leaf"], (), (self,))

    @property
    def grad_fn(self) -> Any:
        """None for a leaf of the caller's."""
        root = self._input()
        if root is not None and not root.private and root.source is not None:
            return root.source.grad_fn
        return run_plain(_get["grad_fn"], (), (self,))

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """On a leaf of the caller's: its gradient is accumulated in the caller's tensor."""
        leaf = self._leaf_source()
        if leaf is not None:
            return leaf.register_post_accumulate_grad_hook(hook)
        return super().register_post_accumulate_grad_hook(hook)

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the caller's tensor, unless the handle has one of its own."""
        leaf = None if run_plain(_get["retains_grad"], (), (self,)) else self._leaf_source()
        return run_plain(_get["grad"], (), (self,)) if leaf is None else leaf.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        leaf = self._leaf_source()
        if leaf is not None:
            leaf.grad = value
            value = None
        run_plain(_set_grad, (), (self, value))

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def _base(self) -> Tensor | None:
        state = self._safemodule
        return state.family.handle if type(state) is View else None

    @property
    def _is_param(self) -> bool:
        root = self._input()
        return root is not None and isinstance(root.source, Parameter)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        """`nn.Parameter(x)`: it gets memory of its own and becomes a real one."""
        if value:
            handle, root = handle_and_root(self)
            with root.locked(), interception_off():
                if not root.private:
                    redirect(FrozenTensor, handle, root)
            make_plain(self)
            self.__class__ = Parameter  # type: ignore[assignment]

    def _input(self) -> Root | None:
        state = self._safemodule
        return None if type(state) is View else root_of(self, state)

    def _leaf_source(self) -> Tensor | None:
        root = self._input()
        if root is None or root.source is None or run_plain(_get["is_leaf"], (), (self,)):
            return None
        source = root.source
        return source if source.is_leaf and source.requires_grad else None

    def __getattr__(self, name: str) -> Any:
        if name == "_safemodule":  # made by C++ without our attributes: a fresh handle
            state = self._safemodule = Root(None, _unknown, None, "<saved tensor>")
            return state
        root = self._input()
        if root is not None and root.source is not None and not name.startswith("__"):
            try:
                return getattr(root.source, name)
            except AttributeError:
                pass
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The attributes set on the handle; ours is not shown."""
        return {k: v for k, v in _get_dict(self).items() if k != "_safemodule"}

    @__dict__.setter
    def __dict__(self, value: dict[str, Any]) -> None:
        # `torch.utils.swap_tensors`: another Python object takes the handle's place.
        _set_dict(self, value)
        state = value.get("_safemodule")
        family = state.family and state.family() if type(state) is Root else None
        if family is not None:
            family.handle = self

    # -- methods that torch does not route ---------------------------------------------------------

    def set_(self, *args: Any, **kwargs: Any) -> Tensor:
        return intercept(FrozenTensor, _SET, Tensor.set_, (FrozenTensor,), (self, *args), kwargs)

    def as_subclass(self, cls: Any) -> Any:
        if cls is Tensor:
            return self.view_as(self)
        # The other class knows nothing of handles: it gets the private copy's memory.
        return intercept(
            FrozenTensor, _EXPORT, Tensor.as_subclass, (FrozenTensor,), (self, cls), {}
        )

    # -- shown, copied and saved as a plain tensor -------------------------------------------------

    def _shown(self) -> Tensor | None:
        """The caller's tensor, as long as the handle looks like it: a leaf, a Parameter, ..."""
        root = self._input()
        if root is None or root.private or root.source is None:
            return None
        return root.source if root.source.requires_grad == self.requires_grad else None

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        source = self._shown()
        if source is not None and tensor_contents is None:
            return repr(source)
        with unmasked(FrozenTensor, iter([self])):
            return Tensor.__repr__(self, tensor_contents=tensor_contents)

    def __format__(self, spec: str) -> str:
        source = self._shown()
        if source is not None:
            return format(source, spec)
        with unmasked(FrozenTensor, iter([self])):
            return Tensor.__format__(self, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _thing(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_thing(self), memo)

    def __copy__(self) -> Any:
        alias = self.detach()
        return alias.requires_grad_() if self.requires_grad else alias


_REAL = Effect("real=", Kind.WRITE, lambda args, _: (args[0],), may_alias=False)
_IMAG = Effect("imag=", Kind.WRITE, lambda args, _: (args[0],), may_alias=False)
_SET = Effect("set_", Kind.WRITE, lambda args, _: (args[0],), may_alias=False)
_EXPORT = Effect("as_subclass", Kind.EXPORT, may_alias=False)


def _thing(handle: Any) -> Any:
    """Return a plain tensor that pickles and deep-copies as the handle's tensor would."""
    root = handle._input()
    if root is not None and not root.private and root.source is not None:
        return root.source
    source = None if root is None else root.source
    with interception_off():
        if handle.is_leaf or (source is not None and source.is_leaf and source.requires_grad):
            return handle.detach().requires_grad_(handle.requires_grad)
        return handle[...]


def make_handle(x: Tensor, plan: Plan, owner: type | None, argument: Path) -> Any:
    """Return a handle of `x`: a real alias, in its graph where a gradient or a tangent flows.

    Args:
        x: A strided tensor, plain or a handle of an outer call.
        plan: What the guarded function declares.
        owner: Class of the guarded module.
        argument: Path of the argument, for records.
    """
    if type(x) is FrozenTensor:  # of an outer call: an alias, not a view of its family
        with interception_off():
            handle: Any = _alias(x)
    else:
        handle = _alias(x)
    handle.__class__ = FrozenTensor
    handle._safemodule = (x, plan, owner, argument)
    return handle


def _alias(x: Tensor) -> Tensor:
    # `x[...]` is 0.1 us cheaper than `x.view_as(x)`, and nested tensors know it.
    if x.requires_grad:
        if torch.is_grad_enabled():
            return x[...]
        set_grad_enabled(True)  # under no_grad an alias would forget that it requires a gradient
        try:
            return x[...]
        finally:
            set_grad_enabled(False)
    if forward_ad_active():
        return x[...]
    return x.detach()  # 0.5 us against 0.9


def make_plain(handle: Any) -> Tensor:
    """Turn a handle into an ordinary tensor, the same Python object."""
    handle.__class__ = Tensor
    del handle._safemodule
    return handle
