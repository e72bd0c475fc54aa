"""The memory of one argument of a guarded call, and a place in it."""

from __future__ import annotations

import torch


class Undefined(Exception):
    """PyTorch gives this no meaning, or refuses it whatever the library does."""


class Identity:
    """What autograd takes for one base tensor and its views: `x`, but not `x.detach()`."""

    __slots__ = ("carrier", "clock", "leaf")

    def __init__(self, carrier=None, clock=None):
        self.carrier = carrier
        """Flat tensor that carries the gradient; its values may be stale, those of Memory count."""
        self.clock = [0] if clock is None else clock
        """The version counter."""
        self.leaf = False
        """`x.detach().requires_grad_()`: it shares memory, and gradients end there."""


class Memory:
    """The memory of one input of a guarded call: a clone, as far as anyone can tell."""

    __slots__ = (
        "argument", "dense", "frozen", "keeps", "level", "moment", "numbers", "over", "over_too",
        "passed", "root", "run", "saved", "source", "strides", "writes", "written",
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
        self.saved = False
        """A leaf that shares it was used: PyTorch refuses its backward pass after a write."""
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
        whole[at] = numbered(x, torch.float64)
        return whole


def pairs(x):
    """Return a tensor as numbers of the memory: pairs for complex, the bits for int64."""
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    return x.view(torch.float64) if x.dtype == torch.int64 else x.resolve_neg()


def numbered(geometry, dtype):
    """Return a map with the strides of a clone."""
    strides = torch.empty_like(geometry).stride()
    numbers = torch.arange(geometry.numel() * (2 if dtype.is_complex else 1), dtype=torch.float64)
    if dtype.is_complex:
        numbers = torch.view_as_complex(numbers.view(-1, 2))
    elif dtype == torch.int64:
        numbers = numbers.view(torch.int64)
    return numbers.as_strided(geometry.shape, strides)


class Value:
    """What a `Ref` knows of the tensor that it stands for: a map of positions in some memory."""

    __slots__ = ("born", "identity", "map", "memory", "recorded", "under")

    def __init__(self, memory, positions, identity, under, *, recorded=True):
        self.memory = memory
        self.map = positions
        self.identity = identity
        self.under = under
        """The same of what was passed (a `Ref` or a tensor): shown until the first write."""
        self.recorded = recorded
        """Gradients were on when it was made."""
        self.born = identity.clock[0]

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
        return pairs(self.map).abs().to(torch.int64)

    def read(self):
        """Return the value as an independent tensor, in the graph of what was written so far."""
        # Results of operations have strides in the order of those of what they read.
        strides = torch.empty_like(self.geometry()).stride()
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        signed = pairs(self.map.permute(order))
        positions = signed.abs().to(torch.int64)
        numbers = self.memory.numbers.take(positions)
        carrier = self.carrier() if torch.is_grad_enabled() else None
        if carrier is not None and not self.recorded:
            # PyTorch says that such a view requires a gradient, and leads it nowhere.
            numbers.requires_grad_(carrier.requires_grad)
        elif self.identity.leaf and torch.is_grad_enabled():
            numbers.requires_grad_()
            self.memory.saved = True
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

    def carrier(self):
        """Return the flat tensor by which gradients leave, None if they do not."""
        carrier = self.identity.carrier
        if carrier is None or not (self.dtype.is_floating_point or self.dtype.is_complex):
            return None
        if not self.recorded and self.identity.clock[0] != self.born:
            raise Undefined("a view made under no_grad is used after a write")
        return carrier

    def check_use(self):
        """Raise where PyTorch refuses a view made under no_grad after a write."""
        if torch.is_grad_enabled():
            self.carrier()

    def geometry(self):
        """Return a tensor of the strides that the program sees now."""
        if self.memory.dense or self.under is None:
            return self.map
        return self.under.geometry() if isinstance(self.under, Value) else self.under

    def alias(self):
        """Return another stand-in of the same tensor."""
        out = type(self)(self.memory, self.map, self.identity, self.under)
        out.recorded, out.born = self.recorded, self.born
        return out

    def store(self, value):
        """Put a new value in."""
        if self.memory.over:
            raise Undefined("a tensor of the program's own is written")
        if self.memory.saved or (self.identity.leaf and torch.is_grad_enabled()):
            raise Undefined("a leaf, or the memory of a leaf that was used, is written")
        signed, new = pairs(self.map), pairs(value)
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
