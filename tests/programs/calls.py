"""Guarded calls in the reference: arguments in, results out, and the record of what was written."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys

import torch
from torch import Tensor

from tests.programs import functions
from tests.programs.memory import Identity, Memory, Undefined, numbered, pairs
from tests.programs.operations import double_
from tests.programs.reference import Ref, value_of


class Run:
    """One run of one program: what was written where, and what the program calls."""

    def __init__(self, filename):
        self.filename = filename
        self.order = []
        """Pairs of line number and argument, in the order of the first write of each."""
        self.by_geometry = False
        """What was passed has another geometry than its clone, and the program noticed."""
        self.kept = []
        """The memories that keep the geometry of what was passed."""
        self.away = False
        self.count = 0
        """How many writes there were."""
        self.level = 0
        self.passed_through = False
        """A nested call returned its argument, or a view of it, unwritten: no clone of it."""

    @property
    def writes(self):
        """The pairs, for comparison."""
        return set(self.order)

    def note(self, argument):
        """Put a write on record."""
        write = (self.line(), argument)
        if write not in self.order:
            self.order.append(write)

    def forget(self, kept):
        """Undo what looking at a view did, which is not part of the program."""
        while len(self.kept) > kept:
            self.kept.pop().keeps = False

    @contextlib.contextmanager
    def elsewhere(self):
        """A block in which what is written is written by a line of another file."""
        self.away = True
        yield
        self.away = False

    def line(self):
        if self.away:
            return 0
        frame = sys._getframe(1)
        while frame.f_code.co_filename != self.filename:
            frame = frame.f_back
        return frame.f_lineno

    def namespace(self):
        """Return what stands for the library."""
        return {
            "freeze": self.freeze,
            "freeze_inputs": self.freeze_inputs,
            "SafeModule": type("SafeModule", (_Module,), {"run": self}),
            "product": lambda x, y: functions.product(value_of(x), value_of(y)),
            "reverse": lambda x: functions.reverse(value_of(x)),
            "checkpointed": lambda func, x: func(value_of(x)),
            "double_": double_,
            "slope": lambda func, x: functions.slope(func, value_of(x)),
        }

    def freeze(self, x, *, name):
        ref = self.enter(x, name)
        ref.memory.frozen = True
        return ref

    def freeze_inputs(self, func=None, *, snapshot=False, mutable=()):
        if func is None:
            return functools.partial(self.freeze_inputs, snapshot=snapshot, mutable=mutable)
        signature = inspect.signature(func)

        @functools.wraps(func)
        def guarded(*args, **kwargs):
            known = {}
            self.level += 1
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if name in mutable:
                    continue
                bound.arguments[name] = self.enter_all(value, name, known, snapshot)
            out = func(*bound.args, **bound.kwargs)
            out = self.leave(out, [ref.memory for _, ref in known.values()])
            self.level -= 1
            return out

        return guarded

    def enter_all(self, value, name, known, snapshot):
        if isinstance(value, (Tensor, Ref)):
            if id(value) not in known:
                known[id(value)] = (value, self.enter(value, name, snapshot))
            return known[id(value)][1]
        if isinstance(value, dict):
            items = {
                k: self.enter_all(v, f"{name}[{k!r}]", known, snapshot) for k, v in value.items()
            }
            return _Dict(items, self, name)
        if isinstance(value, (list, tuple)):
            parts = [
                self.enter_all(v, f"{name}[{i}]", known, snapshot) for i, v in enumerate(value)
            ]
            return tuple(parts) if isinstance(value, tuple) else _List(parts, self, name)
        return value

    def enter(self, x, argument, snapshot=False):
        """Return what stands for a clone of a tensor."""
        with torch.enable_grad():
            value = x.read() if isinstance(x, Ref) else x
        geometry = x.geometry() if isinstance(x, Ref) else x
        positions = numbered(geometry, value.dtype)
        numbers = pairs(value.detach())
        flat = numbers.new_empty(numbers.numel())
        memory = Memory(flat, self, argument)
        memory.dense = snapshot
        memory.passed = geometry
        ref = Ref(memory, positions, Identity(), x.alias() if isinstance(x, Ref) else x)
        memory.root, memory.source, memory.strides = ref, x, positions.stride()
        if isinstance(x, Ref):
            memory.moment = (x, x.memory.writes, x.map)
        where = ref.positions
        flat[where] = numbers
        if value.requires_grad:
            with torch.enable_grad():
                ref.identity.carrier = flat.clone().index_put((where,), pairs(value))
        return ref

    def leave(self, out, memories):
        done = self._released(out, memories)
        for memory in memories:
            memory.end()
        return done

    def _released(self, out, memories):
        if isinstance(out, Ref):
            memory = out.memory
            frozen_here = memory.frozen and memory.level >= self.level
            if not (frozen_here or any(memory is m for m in memories)):
                return out
            if memory.moved_on() and not memory.written and self.level > 1:
                raise Undefined("frozen: a copy, or the argument of the nested call itself")
            if memory.written or memory.over or memory.moved_on():
                memory.over = True
                return out
            self.passed_through = True
            if out is memory.root:
                return self._released(memory.source, memories)
            return out if memory.dense else self._released(out.under, memories)
        if isinstance(out, dict):
            return {k: self._released(v, memories) for k, v in out.items()}
        if isinstance(out, (list, tuple)):
            kind = tuple if isinstance(out, tuple) else list
            return kind([self._released(v, memories) for v in out])
        return out


def _noting(base, name, *, whole):
    def method(self, *args, **kwargs):
        self.run.note(self.argument if whole else f"{self.argument}[{args[0]!r}]")
        return getattr(base, name)(self, *args, **kwargs)

    return method


class _Dict(dict):
    """A dict that was passed: its changes are on record."""

    def __init__(self, items, run, argument):
        super().__init__(items)
        self.run, self.argument = run, argument

    __setitem__ = _noting(dict, "__setitem__", whole=False)
    __delitem__ = _noting(dict, "__delitem__", whole=False)
    pop = _noting(dict, "pop", whole=False)
    update = _noting(dict, "update", whole=True)


class _List(list):
    """A list that was passed: its changes are on record."""

    def __init__(self, items, run, argument):
        super().__init__(items)
        self.run, self.argument = run, argument

    __setitem__ = _noting(list, "__setitem__", whole=False)
    append = _noting(list, "append", whole=True)
    reverse = _noting(list, "reverse", whole=True)
    __iadd__ = _noting(list, "__iadd__", whole=True)


class _Module:
    """Stands for `SafeModule`."""

    run: Run

    def __call__(self, *args, **kwargs):
        return self.run.freeze_inputs(self.forward)(*args, **kwargs)
