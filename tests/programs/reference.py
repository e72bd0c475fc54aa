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

import functools

from torch import Tensor

from tests.programs.memory import Value
from tests.programs.operations import call, set_data, view

ABOUT = ("dim", "numel", "size", "stride", "is_contiguous", "storage_offset")
ATTRIBUTES = ("H", "T", "data", "imag", "mH", "mT", "real")


class Ref(Value):
    """Stands for a tensor, in all that a program does with one."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})

    def __getattr__(self, name):
        found = getattr(Tensor, name)
        if name in ATTRIBUTES:
            return view(_getter(name), name, (self,), {})
        if not callable(found) or name in ABOUT:
            return getattr(self.map, name)
        return functools.partial(_method, found, self)

    def __setattr__(self, name, value):
        if name == "data":
            set_data(self, value_of(value))
        elif name in ("imag", "real"):
            getattr(self, name).copy_(value)
        else:
            object.__setattr__(self, name, value)

    def __iter__(self):
        return iter(self.unbind(0))

    def __repr__(self):
        return f"Ref({self.read()!r}, {self.memory.argument})"

    __hash__ = object.__hash__


def _method(func, self, *args, **kwargs):
    return call(func, (self, *args), kwargs)


def _operator(name):
    func = getattr(Tensor, name)
    return lambda self, *args: call(func, (self, *args), {})


for _name in """
    __getitem__ __setitem__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__
    __imul__ __truediv__ __rtruediv__ __itruediv__ __mod__ __imod__ __pow__ __ipow__ __neg__
    __invert__ __matmul__ __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __bool__ __int__ __float__ __index__ __len__
    """.split():
    setattr(Ref, _name, _operator(_name))


def _getter(name):  # a function, as attributes have none that takes a stand-in
    return lambda x: getattr(x, name)


def value_of(out):
    """Return a result of a program as a real tensor."""
    return out.read() if isinstance(out, Ref) else out
