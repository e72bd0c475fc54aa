"""The operations of a program on what stands for its tensors: views, writes, and all the others.

An operation runs on real tensors of the values. A view is made of the map; what changed its
arguments (their version counters tell) is stored back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.programs.memory import Identity, Undefined, Value, pairs

# Names of methods, functions and attributes whose result may share memory with their first
# argument.
VIEWS = frozenset(
    """
    __getitem__ adjoint alias as_strided chunk conj contiguous data detach diagonal dsplit expand
    expand_as flatten H hsplit imag mH movedim moveaxis mT narrow permute ravel real reshape
    reshape_as select slice split split_with_sizes squeeze swapaxes swapdims t T tensor_split
    transpose unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as
    view_as_complex view_as_real vsplit
    """.split()
)
METADATA = {
    f"{name}_": getattr(Tensor, name)
    for name in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")
}
# Here a written argument may also be read, element by element.
ELEMENTWISE = frozenset(
    """
    add_ sub_ mul_ div_ copy_ addcmul_ addcdiv_ lerp_ atan2_ add sub mul div where masked_fill_
    __iadd__ __isub__ __imul__ __itruediv__ __iand__ __ior__ __ixor__ tanh sin neg sigmoid
    logical_and_ logical_or_ logical_xor_ maximum minimum hypot_ copysign_
    """.split()
)


def call(func, args, kwargs):
    """Run one operation of the program."""
    name = func.__name__.split(".")[0]  # `add_.Tensor` of torch.ops
    if name in METADATA:
        return _metadata(METADATA[name], *args, **kwargs)
    if name in VIEWS and isinstance(args[0], Value):
        return view(func, name, args, kwargs)
    if name == "requires_grad_":
        return _leaf(*args)
    reals = _Reals()
    if name.startswith("_foreach") and any(
        x.map.is_conj() or x.map.is_neg() for x in _values_in(args)
    ):
        raise Undefined("PyTorch refuses it")
    out = func(*reals.of(args), **reals.of(kwargs))
    reals.store(name, args)
    return reals.back(out)


def _leaf(self):
    if self.identity.carrier is not None:
        raise Undefined("not a detached tensor")
    if not (self.dtype.is_floating_point or self.dtype.is_complex):
        raise Undefined("PyTorch refuses it")
    self.identity.leaf = True
    return self


def _values_in(arg):
    if isinstance(arg, Value):
        yield arg
    elif type(arg) in (list, tuple):
        for item in arg:
            yield from _values_in(item)


class _Reals:
    """The real tensors that stand for the Refs of one call, a new one for each mention."""

    def __init__(self):
        self.made = []

    def of(self, arg):
        if isinstance(arg, Value):
            real = arg.read()
            self.made.append((arg, real, real._version))
            return real
        if type(arg) in (list, tuple):
            return type(arg)([self.of(item) for item in arg])
        if isinstance(arg, dict):
            return {key: self.of(value) for key, value in arg.items()}
        return arg

    def store(self, name, args):
        written = [(ref, real) for ref, real, version in self.made if real._version != version]
        if name == "batch_norm":  # running statistics: the version does not tell
            written = [
                (ref, real) for ref, real, _ in self.made if any(ref is x for x in args[1:3])
            ]
        for ref, real in written:
            if not ref.unique():
                raise Undefined("written elements share memory")
            if real.shape != ref.map.shape:
                raise Undefined("out= is resized")
            target, whole = ref, name in ELEMENTWISE
            if name == "__setitem__":
                part = call(Tensor.__getitem__, (ref, args[1]), {})
                if isinstance(part, Value):
                    target, whole = part, True
            for other, value, _ in self.made:
                if value is not real and other.memory is ref.memory:
                    _check_overlap(target, other, whole)
        for ref, real in written:
            ref.store(real)

    def back(self, out):
        if isinstance(out, Tensor):
            for ref, real, _ in self.made:
                if out is real:
                    return ref
        elif type(out) in (list, tuple):
            return type(out)([self.back(item) for item in out])
        return out


def _check_overlap(target, other, whole):
    there, here = target.positions, other.positions
    if not torch.isin(there, here).any():
        return
    same = target.map.stride() == other.map.stride() and torch.equal(there, here)
    if not (same and whole):
        raise Undefined("what is written overlaps with what is read")


def view(func, name, args, kwargs):
    """Return a view: the same view of the map. Where PyTorch would copy, a copy."""
    self = args[0]
    reals = _Reals()
    rest, named = reals.of(args[1:]), reals.of(kwargs)
    memory = self.memory
    memory.settle()
    if memory.numbers.dtype == torch.bool and (
        name == "view_as_complex" or any(isinstance(a, torch.dtype) for a in rest)
    ):
        raise Undefined("the bits of a bool")
    with torch.no_grad():
        strided = name == "as_strided"
        here = _as_strided(self, *rest) if strided else func(self.map, *rest, **named)
    under = None
    if not memory.dense:
        if isinstance(self.under, Value):
            under = view(func, name, (self.under, *rest), named)
        else:
            under = func(self.under, *rest, **named)

    def value():
        return func(self.read(), *rest, **named)

    if any(isinstance(a, torch.dtype) for a in rest):
        name = "detach"  # bits have no gradient, also where the dtype is the same

    if type(here) in (list, tuple):
        unders = [None] * len(here) if under is None else under
        return tuple(
            _wrap(self, name, m, u, lambda i=i: value()[i])
            for i, (m, u) in enumerate(zip(here, unders, strict=True))
        )
    return _wrap(self, name, here, under, value)


def _as_strided(self, size, stride, offset=None):
    """Return the map of a view whose strides and offset are those of a whole storage.

    Until the first write this is the storage of what was passed. Then the strides mean something
    else in a clone, so the memory keeps the geometry of what was passed for good.
    """
    memory, here = self.memory, self.geometry()
    if memory.dense or _covers(memory.passed):
        positions = self.map
    elif self.map.dtype != torch.float64 or memory.numbers.dtype != torch.float64:
        raise Undefined("as_strided of something else than float64")
    else:
        memory.run.by_geometry = True
        if not memory.keeps:
            memory.keeps = True
            memory.run.kept.append(memory)
        positions = memory.layout()
        offset = here.storage_offset() if offset is None else offset
    out = positions.as_strided(size, stride, offset)
    if (out < 0).any():
        raise Undefined("memory of the caller that was not passed")
    carrier = self.identity.carrier
    if carrier is not None and not torch.isin(pairs(out).long(), self.positions).all():
        raise Undefined("PyTorch's gradient knows no more than the elements of the input")
    return out


def _covers(geometry):
    return (
        geometry.storage_offset() == 0
        and geometry.is_contiguous()
        and geometry.untyped_storage().nbytes() == geometry.numel() * geometry.element_size()
    )


def _wrap(self, name, here, under, value):
    shares = name == "as_strided" or _shares(here, self.map)
    if under is not None:
        shown = _shares(under, self.under)
        if shown != shares:
            self.memory.run.by_geometry = True
            if shown and not shares:
                raise Undefined("a view of what was passed is none of its clone")
            shares = False
    if not shares:
        return value()
    if here is self.map or (under is not None and under is self.under):
        return self
    identity = self.identity
    if name == "data":
        identity = Identity()
    elif name == "detach" or torch.int64 in (here.dtype, self.map.dtype):
        identity = Identity(clock=identity.clock)
    elif torch.is_grad_enabled() and not self.recorded:
        self.check_use()
    recorded = identity is not self.identity or (self.recorded and torch.is_grad_enabled())
    out = type(self)(self.memory, here, identity, under, recorded=recorded)
    if identity is self.identity and not self.recorded:
        out.born = self.born
    return out


def _shares(out, of):
    if isinstance(out, Value) or isinstance(of, Value):
        return isinstance(out, Value) and isinstance(of, Value) and out.memory is of.memory
    return out.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def _metadata(func, self, *args, **kwargs):
    """Change the geometry in place: `x.t_()`."""
    carrier = self.identity.carrier
    if carrier is not None and carrier.requires_grad and not torch.is_grad_enabled():
        raise Undefined("geometry is changed under no_grad: PyTorch's gradient has the old one")
    if not self.recorded:
        self.check_use()
    with torch.no_grad():
        here = func(self.map, *args, **kwargs)
    if not self.memory.dense:
        if isinstance(self.under, Value):
            self.under = call(func, (self.under, *args), kwargs)
        else:
            self.under = func(self.under, *args, **kwargs)
    self.map = here
    if self is self.memory.root:
        self.memory.root = None
    self.note()
    return self


def set_data(ref, value):
    """Give a tensor other memory; views made before stay with the old."""
    old = ref.memory
    if ref is not old.root or value.shape != ref.map.shape or value.dtype != ref.dtype:
        raise Undefined("`.data =` of something else than a whole argument")
    with torch.enable_grad():
        path = ref.carrier()
        path = None if path is None else ref.read()
    new = old.run.enter(value, old.argument)
    old.over_too.append(new.memory)
    ref.memory, ref.map, ref.identity, ref.under = new.memory, new.map, new.identity, None
    ref.memory.dense = ref.memory.written = True
    ref.memory.level, ref.memory.frozen = old.level, old.frozen
    ref.memory.root = ref
    if path is not None and path.requires_grad:
        flat = torch.zeros_like(new.memory.numbers)
        ref.identity.carrier = flat.index_put((ref.positions,), pairs(path))
    ref.note()


def double_(ref):
    """Do what the custom function does that doubles its argument in place."""
    if not ref.unique():
        raise Undefined("written elements share memory")
    carrier = ref.identity.carrier
    whole = ref is ref.memory.root and torch.is_grad_enabled()
    if carrier is not None and carrier.requires_grad and not whole:
        raise Undefined("ctx.mark_dirty of a view, or under no_grad: refused as the first write")
    with ref.memory.run.elsewhere():
        ref.store(ref.read() * 2)
    return ref
