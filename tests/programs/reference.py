"""What a program computes as if every input had been cloned on entry, without in-place autograd.

A `Ref` stands for a tensor. Its memory is a flat list of numbers, and it holds a map: a real tensor
of the same geometry whose elements are positions in that list. A view of a `Ref` is the same view
of its map, a read gathers at the map, and a write puts new numbers there, out of place: plain
functional autograd, in which no value that was read can ever change.

What autograd knows is kept apart from the numbers, as PyTorch does it: a write under `no_grad`, or
through `detach()` or `.data`, changes numbers and leaves the gradient path of `x` as it was.

Nothing here knows the library. A program is Python source; `Run.namespace` has what it calls.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys

import torch
from torch import Tensor

from tests.programs import functions

# Names of methods, functions and attributes whose result may share memory with their first
# argument.
VIEWS = frozenset(
    """
    __getitem__ adjoint alias as_strided chunk conj contiguous data detach diagonal dsplit expand expand_as flatten
    hsplit imag movedim moveaxis H mH mT narrow permute ravel real reshape reshape_as select slice
    split split_with_sizes squeeze swapaxes swapdims t T tensor_split transpose unbind unflatten
    unfold unsafe_chunk unsafe_split unsqueeze view view_as view_as_complex view_as_real vsplit
    """.split()
)
METADATA = {
    f"{name}_": getattr(Tensor, name)
    for name in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")
}
ABOUT = ("dim", "numel", "size", "stride", "is_contiguous", "storage_offset")
ATTRIBUTES = ("H", "T", "data", "imag", "mH", "mT", "real")
# Here a written argument may also be read, element by element.
ELEMENTWISE = frozenset(
    """
    add_ sub_ mul_ div_ copy_ addcmul_ addcdiv_ lerp_ atan2_ add sub mul div where masked_fill_
    __iadd__ __isub__ __imul__ __itruediv__ __iand__ __ior__ __ixor__ tanh sin neg sigmoid
    logical_and_ logical_or_ logical_xor_ maximum minimum hypot_ copysign_
    """.split()
)


class Undefined(Exception):  # noqa: N818 -- no error of the program, it only says nothing
    """PyTorch gives this no meaning, or refuses it whatever the library does."""


class Identity:
    """What autograd takes for one base tensor and its views: `x`, but not `x.detach()`."""

    __slots__ = ("carrier", "clock")

    def __init__(self, carrier=None, clock=None):
        self.carrier = carrier
        """Flat tensor that carries the gradient; its values may be stale, those of Memory count."""
        self.clock = [0] if clock is None else clock
        """The version counter."""


class Memory:
    """The memory of one input of a guarded call: a clone, as far as anyone can tell."""

    __slots__ = (
        "argument", "dense", "frozen", "keeps", "level", "numbers", "over", "over_too",
        "passed", "root", "run",
        "source", "strides", "moment", "writes", "written",
    )  # fmt: skip

    def __init__(self, numbers, run, argument):
        self.numbers = numbers
        self.run = run
        self.argument = argument
        self.written = False
        self.dense = False
        """The geometry is that of the clone; until then it is that of what was passed."""
        self.keeps = False
        """It stays that of what was passed."""
        self.passed = None
        """A tensor of the geometry of what was passed."""
        self.over_too = []
        """Memory given to it by `x.data = ...`."""
        self.writes = 0
        self.moment = None
        """What was passed, if it is a Ref, how often it had been written then, and its map then."""
        self.level = run.level
        """How many guarded calls were open when `freeze` made it: the last one makes it plain."""
        self.frozen = False
        self.over = False
        """The call has ended: it is an ordinary tensor now."""
        self.root = self.source = None
        """The stand-in of the argument, and what was passed; None once they are no longer alike."""


    def end(self):
        """The call has ended."""
        self.over = True
        for memory in self.over_too:
            memory.end()

    def moved_on(self):
        """Tell whether what was passed has changed since."""
        if self.moment is None:
            return False
        source, writes, positions = self.moment
        return source.memory.writes != writes or source.map is not positions

    def settle(self):
        """See to the geometry where what was passed has changed since: it is that of then."""
        if not self.dense and self.moved_on():
            if self.passed.stride() != self.strides:
                raise Undefined("the geometry of what was frozen and then written")
            self.dense = True

    def layout(self):
        """Return, for each element of the storage of what was passed, the position; -1 for none."""
        storage, x = self.passed.untyped_storage(), self.passed
        whole = torch.full((storage.nbytes() // x.element_size(),), -1.0, dtype=torch.float64)
        at = torch.arange(whole.numel()).as_strided(x.shape, x.stride(), x.storage_offset())
        if at.unique().numel() != at.numel():
            raise Undefined("strides of an expanded tensor")
        whole[at] = _numbered(x, torch.float64)
        return whole


class Ref:
    """Stands for a tensor: a map of positions in some memory."""

    __slots__ = ("born", "identity", "map", "memory", "multiple", "recorded", "under")

    def __init__(self, memory, positions, identity, under, *, recorded=True, multiple=False):
        self.memory = memory
        self.map = positions
        self.identity = identity
        self.under = under
        """The same of what was passed (a `Ref` or a tensor): shown until the first write."""
        self.recorded = recorded
        """Gradients were on when it was made."""
        self.multiple = multiple
        self.born = identity.clock[0]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})

    def __getattr__(self, name):
        found = getattr(Tensor, name)
        if name in ATTRIBUTES:
            return _view(_getter(name), name, (self,), {})
        if not callable(found) or name in ABOUT:
            return getattr(self.map, name)
        return functools.partial(_method, found, self)

    def __setattr__(self, name, value):
        if name == "data":
            _set_data(self, value_of(value))
        elif name in ("imag", "real"):
            getattr(self, name).copy_(value)
        else:
            object.__setattr__(self, name, value)

    def __iter__(self):
        return iter(self.unbind(0))

    def __repr__(self):
        return f"Ref({self.read()!r}, {self.memory.argument})"

    __hash__ = object.__hash__

    @property
    def protected(self):
        """Whether a write goes to a guarded input."""
        return not self.memory.over

    @property
    def dtype(self):
        numbers = self.memory.numbers
        return numbers.dtype if numbers.dtype == torch.bool else self.map.dtype

    @property
    def positions(self):
        """The map as int64, complex numbers as pairs. Below zero, in the map: conjugated."""
        return _pairs(self.map).abs().to(torch.int64)

    def read(self):
        """Return the value as an independent tensor, in the graph of what was written so far."""
        # Results of operations have strides in the order of those of what they read.
        strides = torch.empty_like(self.geometry()).stride()
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        signed = _pairs(self.map.permute(order))
        positions = signed.abs().to(torch.int64)
        numbers = self.memory.numbers.take(positions)
        carrier = self._carrier() if torch.is_grad_enabled() else None
        if carrier is not None and not self.recorded:
            # PyTorch says that such a view requires a gradient, and leads it nowhere.
            numbers.requires_grad_(carrier.requires_grad)
        elif carrier is not None:
            out = carrier.take(positions)
            out.detach().copy_(numbers)
            numbers = out
        if (signed < 0).any():
            numbers = numbers * signed.sign().where(signed != 0, 1)
        if self.map.is_complex():
            numbers = torch.view_as_complex(numbers)
        elif self.dtype == torch.int64:
            numbers = numbers.view(torch.int64)
        if order != list(range(len(order))):
            numbers = numbers.permute(sorted(range(len(order)), key=order.__getitem__))
        return numbers

    def _carrier(self):
        carrier = self.identity.carrier
        if carrier is None or not (self.dtype.is_floating_point or self.dtype.is_complex):
            return None
        if not self.recorded and self.identity.clock[0] != self.born:
            raise Undefined("a view made under no_grad is used after a write")
        return carrier

    def _check_use(self):
        """Raise where PyTorch refuses a view made under no_grad after a write."""
        if torch.is_grad_enabled():
            self._carrier()

    def geometry(self):
        """Return a tensor of the strides that the program sees now."""
        if self.memory.dense or self.under is None:
            return self.map
        return self.under.geometry() if isinstance(self.under, Ref) else self.under

    def alias(self):
        """Return another stand-in of the same tensor."""
        out = Ref(self.memory, self.map, self.identity, self.under)
        out.recorded, out.multiple, out.born = self.recorded, self.multiple, self.born
        return out

    def store(self, value):
        """Put a new value in."""
        signed, new = _pairs(self.map), _pairs(value)
        positions = signed.abs().to(torch.int64)
        if (signed < 0).any():
            new = new * signed.sign().where(signed != 0, 1)
        if torch.is_grad_enabled():
            self._store_carrier(positions, new)
        self.memory.numbers[positions] = new.detach()
        self.identity.clock[0] += 1
        self.memory.written = True
        self.memory.writes += 1
        self.memory.dense = not self.memory.keeps
        self.note()

    def _store_carrier(self, positions, new):
        old = self.identity.carrier
        if old is None and not new.requires_grad:
            return
        if not self.recorded:
            raise Undefined("a view made under no_grad is written in grad mode")
        if old is None:
            old = self.memory.numbers.clone()
        self.identity.carrier = old.index_put((positions,), new)

    def note(self):
        """Put the write on record."""
        memory = self.memory
        memory.run.count += 1
        if not memory.over:
            memory.run.note(memory.argument)

    def unique(self):
        """Tell whether no element is there twice."""
        positions = self.positions.flatten()
        return positions.unique().numel() == positions.numel()


def _method(func, self, *args, **kwargs):
    return call(func, (self, *args), kwargs)


def _operator(name):
    func = getattr(Tensor, name)
    return lambda self, *args: call(func, (self, *args), {})


for _name in """
    __getitem__ __setitem__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__
    __imul__ __truediv__ __rtruediv__ __itruediv__ __mod__ __imod__ __pow__ __ipow__ __neg__ __invert__ __matmul__
    __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __bool__ __int__ __float__ __index__ __len__
    """.split():
    setattr(Ref, _name, _operator(_name))


def _getter(name):  # a function, as attributes have none that takes a stand-in
    return lambda x: getattr(x, name)


def _pairs(x):
    """Return a tensor as numbers of the memory: pairs for complex, the bits for int64."""
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    return x.view(torch.float64) if x.dtype == torch.int64 else x.resolve_neg()


# -- operations ------------------------------------------------------------------------------------


def call(func, args, kwargs):
    """Run one operation of the program."""
    name = func.__name__.split(".")[0]  # `add_.Tensor` of torch.ops
    if name in METADATA:
        return _metadata(METADATA[name], *args, **kwargs)
    if name in VIEWS and isinstance(args[0], Ref):
        return _view(func, name, args, kwargs)
    reals = _Reals()
    out = func(*reals.of(args), **reals.of(kwargs))
    reals.store(name, args)
    return reals.back(out)


class _Reals:
    """The real tensors that stand for the Refs of one call, a new one for each mention."""

    def __init__(self):
        self.made = []

    def of(self, arg):
        if isinstance(arg, Ref):
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
                if isinstance(part, Ref):
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


def _view(func, name, args, kwargs):
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
        if name == "as_strided":
            here = _as_strided(self, *rest)
        else:
            here = func(self.map, *rest, **named)
    under = None
    if not memory.dense:
        if isinstance(self.under, Ref):
            under = _view(func, name, (self.under, *rest), named)
        else:
            under = func(self.under, *rest, **named)

    def value():
        return func(self.read(), *rest, **named)

    if type(here) in (list, tuple):
        unders = [None] * len(here) if under is None else under
        return tuple(
            _wrap(self, name, m, u, lambda i=i: value()[i], multiple=True)
            for i, (m, u) in enumerate(zip(here, unders, strict=True))
        )
    return _wrap(self, name, here, under, value, multiple=False)


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
    if carrier is not None and not torch.isin(_pairs(out).long(), self.positions).all():
        raise Undefined("PyTorch's gradient knows no more than the elements of the input")
    return out


def _covers(geometry):
    return (
        geometry.storage_offset() == 0
        and geometry.is_contiguous()
        and geometry.untyped_storage().nbytes() == geometry.numel() * geometry.element_size()
    )


def _wrap(self, name, here, under, value, *, multiple):
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
    elif name == "detach" or here.dtype == torch.int64 or self.map.dtype == torch.int64:
        identity = Identity(clock=identity.clock)
    elif torch.is_grad_enabled() and not self.recorded:
        self._check_use()
    recorded = identity is not self.identity or (self.recorded and torch.is_grad_enabled())
    multiple |= self.multiple and identity is self.identity
    out = Ref(self.memory, here, identity, under, recorded=recorded, multiple=multiple)
    if identity is self.identity and not self.recorded:
        out.born = self.born
    return out


def _shares(out, of):
    if isinstance(out, Ref) or isinstance(of, Ref):
        return isinstance(out, Ref) and isinstance(of, Ref) and out.memory is of.memory
    return out.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def _metadata(func, self, *args, **kwargs):
    """Change the geometry in place: `x.t_()`."""
    carrier = self.identity.carrier
    if carrier is not None and carrier.requires_grad and not torch.is_grad_enabled():
        raise Undefined("geometry is changed under no_grad: PyTorch's gradient has the old one")
    if not self.recorded:
        self._check_use()
    with torch.no_grad():
        here = func(self.map, *args, **kwargs)
    if not self.memory.dense:
        if isinstance(self.under, Ref):
            self.under = call(func, (self.under, *args), kwargs)
        else:
            self.under = func(self.under, *args, **kwargs)
    self.map = here
    if self is self.memory.root:
        self.memory.root = None
    self.note()
    return self


# -- guarded calls ---------------------------------------------------------------------------------


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
            "double_": _double,
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
        positions = _numbered(geometry, value.dtype)
        numbers = _pairs(value.detach())
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
                ref.identity.carrier = flat.clone().index_put((where,), _pairs(value))
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


def _set_data(ref, value):
    """Give a tensor other memory; views made before stay with the old."""
    old = ref.memory
    if ref is not old.root or value.shape != ref.map.shape or value.dtype != ref.dtype:
        raise Undefined("`.data =` of something else than a whole argument")
    with torch.enable_grad():
        path = ref._carrier()
        path = None if path is None else ref.read()
    new = old.run.enter(value, old.argument)
    old.over_too.append(new.memory)
    ref.memory, ref.map, ref.identity, ref.under = new.memory, new.map, new.identity, None
    ref.memory.dense = ref.memory.written = True
    ref.memory.level, ref.memory.frozen = old.level, old.frozen
    ref.memory.root = ref
    if path is not None and path.requires_grad:
        flat = torch.zeros_like(new.memory.numbers)
        ref.identity.carrier = flat.index_put((ref.positions,), _pairs(path))
    ref.note()


def _double(ref):
    if not ref.unique():
        raise Undefined("written elements share memory")
    carrier = ref.identity.carrier
    whole = ref is ref.memory.root and torch.is_grad_enabled()
    if carrier is not None and carrier.requires_grad and not whole:
        raise Undefined("ctx.mark_dirty of a view, or under no_grad: refused as the first write")
    with ref.memory.run.elsewhere():
        ref.store(ref.read() * 2)
    return ref


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


def _numbered(geometry, dtype):
    """Return a map with the strides of a clone."""
    strides = torch.empty_like(geometry).stride()
    numbers = torch.arange(geometry.numel() * (2 if dtype.is_complex else 1), dtype=torch.float64)
    if dtype.is_complex:
        numbers = torch.view_as_complex(numbers.view(-1, 2))
    elif dtype == torch.int64:
        numbers = numbers.view(torch.int64)
    return numbers.as_strided(geometry.shape, strides)


def value_of(out):
    """Return a result of a program as a real tensor."""
    return out.read() if isinstance(out, Ref) else out
