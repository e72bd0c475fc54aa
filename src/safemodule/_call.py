"""One guarded call: handles in, plain tensors out."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import Buffer, Module, Parameter

from safemodule import _report
from safemodule._compat import (
    ALONE,
    CAN_SWAP,
    dispatch_modes,
    forward_ad_active,
    interception_off,
    modes_only_watch,
    owned_elsewhere,
    tracing_state,
    transforms_active,
)
from safemodule._lazy_copy import may_share, settle, snapshot
from safemodule._makers import maker_of
from safemodule._modes import effective
from safemodule._state import Path, Plan, Root, handle_and_root
from safemodule._tensor import FrozenTensor, make_handle

_strided: Any = torch.strided
ATOMS: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
_ORDINARY: frozenset[type] = frozenset({Tensor, Parameter, Buffer, FrozenTensor})


def ordinary(x: Any) -> bool:
    """Tell whether a tensor of an ordinary class can be aliased and redirected.

    What is strided can, quantized tensors and (strided) nested ones too.
    """
    return x.layout is _strided


def must_clone() -> bool:
    """Tell whether tensors are being traced or transformed: then inputs are cloned on entry."""
    return (
        transforms_active()
        or tracing_state() is not None
        or (dispatch_modes() and not modes_only_watch())
        or not CAN_SWAP
    )


class Call:
    """What one guarded call was given, and what stands in for it."""

    __slots__ = (
        "clones", "cloning", "entries", "owner", "passed", "plan", "quick", "stand_ins",
    )  # fmt: skip

    def __init__(self, plan: Plan, owner: type | None, *, cloning: bool) -> None:
        self.plan = plan
        self.owner = owner
        self.cloning = cloning
        self.quick = not (cloning or plan.snapshot or forward_ad_active())
        self.entries: dict[int, tuple[Any, Any, int | None]] = {}
        """id of the caller's tensor -> (it, its handle, its version)."""
        self.clones: dict[int, tuple[Any, Any, Any]] = {}
        """id of the clone -> (the caller's tensor, the clone, the clone's version)."""
        self.passed: set[int] = set()
        """ids of the roots of handles that were given as mutable arguments: somebody else's."""
        self.stand_ins: dict[int, tuple[Any, Any]] = {}
        """id of the caller's container -> (it, what stands in for it)."""

    # -- on the way in ------------------------------------------------------------------------------

    def pass_on(self, x: Any) -> Any:
        """Return a mutable argument as it is, and remember that it is not this call's."""
        if type(x) is FrozenTensor:
            self.passed.add(id(handle_and_root(x)[1]))
        return x

    def protect(self, x: Any, argument: Path) -> Any:
        """Return what stands in for one argument, or part of one."""
        cls = type(x)
        if cls is Tensor and self.quick and not x.requires_grad and x.layout is _strided:
            # Most tensors; written out, each costs 0.7 us less.
            known = self.entries.get(id(x))
            if known is not None:
                return known[1]
            handle: Any = x.detach()
            handle.__class__ = FrozenTensor
            handle._safemodule = (x, self.plan, self.owner, argument)
            self.entries[id(x)] = (x, handle, version_of(x))
            return handle
        if cls in ATOMS:
            return x
        if cls in _ORDINARY or isinstance(x, Tensor):
            return self._tensor(x, argument)
        if isinstance(x, Module):
            return x
        maker = maker_of(cls)
        if maker is None:
            return x
        known = self.stand_ins.get(id(x))
        if known is None:
            made = maker(self, x, argument)
            known = self.stand_ins[id(x)] = (x, made)
        return known[1]

    def _tensor(self, x: Any, argument: Path) -> Any:
        known = self.entries.get(id(x))
        if known is None:
            cls = type(x)
            if self.cloning or not (cls is FrozenTensor or (cls in _ORDINARY and ordinary(x))):
                made, version = self._clone(x), None
            elif self.plan.snapshot:
                made, version = self._snapshot(x, argument), None
            else:
                made, version = make_handle(x, self.plan, self.owner, argument), None
                if cls is not FrozenTensor:  # that one is watched by its own call
                    version = version_of(x)
            known = self.entries[id(x)] = (x, made, version)
        return known[1]

    def _clone(self, x: Any) -> Any:
        made = x.clone()
        self.clones[id(made)] = (x, made, version_of(made))
        return made

    def _snapshot(self, x: Any, argument: Path) -> Any:
        with interception_off():
            lazy = may_share(x)
            made: Any = snapshot(x, lazy=lazy)
        made.__class__ = FrozenTensor
        root = made._safemodule = Root(x, self.plan, self.owner, argument)
        root.private, root.lazy = True, lazy
        return made

    # -- on the way out -----------------------------------------------------------------------------

    def check(self) -> None:
        """Find writes that went unseen; before `release`, while handles are handles."""
        for x, made, version in self.entries.values():
            if version is not None and x._version != version:
                self._unseen(x, made)

    def close(self) -> None:
        """End the call: mark the handles that outlive it."""
        alone: list[Any] = []
        for x, made, _ in self.entries.values():
            if type(made) is FrozenTensor:
                if sys.getrefcount(made) > _HELD:
                    handle_and_root(made)[1].over = True
                elif self.plan.snapshot and self._shares(made):
                    alone.append(x)
        if alone:  # the snapshots go, and the caller's tensors are ordinary ones again
            made = None
            self.entries.clear()
            with interception_off():
                for x in alone:
                    settle(x)

    @staticmethod
    def _shares(made: Any) -> bool:
        """Tell whether a snapshot still shares, lazily, with nobody but the caller's tensor."""
        with interception_off():
            return handle_and_root(made)[1].lazy and not owned_elsewhere(made)

    def _unseen(self, x: Any, made: Any) -> None:
        _, root = handle_and_root(made)
        mode = effective(self.plan.mode)
        facts: dict[str, Any] = {
            "op": "(unseen)",
            "argument": root.argument,
            "module": root.module,
            "shape": tuple(x.shape),
            "dtype": str(x.dtype),
            "device": str(x.device),
            "location": self.plan.where,
            "bytes_copied": 0,
        }
        _report.unseen(mode, **facts)


# `entries` holds a handle, and the loop.
_HELD = ALONE + 1


def version_of(x: Any) -> int | None:
    """Return the version counter; None where there is none (inference tensors)."""
    try:
        return x._version
    except (RuntimeError, NotImplementedError, AttributeError):
        return None
