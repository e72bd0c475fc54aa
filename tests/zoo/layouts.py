"""Dtypes, memory layouts and sizes."""

from __future__ import annotations

import torch

from tests.zoo.base import Edge, ramp


class ZeroDimensions(Edge):
    """A scalar tensor."""

    writes = [("add_", "x"), ("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (torch.tensor(2.0, dtype=torch.float64, requires_grad=True),)

    def forward(self, x):
        y = x * 2
        x.add_(1)
        z = x * 1
        x[...] = 5.0
        return y, z, x * 1


class Empty(Edge):
    """No elements: a write is a write all the same."""

    writes = [("add_", "x"), ("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (ramp(0, 3),)

    def forward(self, x):
        x.add_(1)
        x[:] = 2.0
        return x * 1


class Booleans(Edge):
    """The visited mask of a decoder."""

    writes = [("scatter_", "mask"), ("logical_not_", "mask"), ("__ior__", "mask")]

    @staticmethod
    def inputs():
        return (torch.zeros(2, 5, dtype=torch.bool),)

    def forward(self, mask):
        mask.scatter_(1, torch.tensor([[1], [3]]), True)
        mask.logical_not_()
        mask |= mask.roll(1, 1)
        return mask


class Integers(Edge):
    """An index tensor is shifted after it was used."""

    writes = [("add_", "index")]

    @staticmethod
    def inputs():
        return ramp(2, 4), torch.zeros(2, 2, dtype=torch.long)

    def forward(self, x, index):
        y = x.gather(1, index).sum()
        index += 1
        return y, x.gather(1, index)

    refused = True

    def reference(self, x, index):
        return x.gather(1, index).sum(), x.gather(1, index + 1)


class Complex(Edge):
    """Complex numbers, and a conjugate view that is written."""

    writes = [("mul_", "x"), ("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, dtype=torch.complex128),)

    def forward(self, x):
        x.mul_(1 + 2j)
        x.conj().add_(1j)
        return x * 1


class ConjugateInput(Edge):
    """An input that carries the conjugate bit."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (torch.tensor([1 + 2j, 3 - 1j]).conj(),)

    def forward(self, x):
        x.add_(1j)
        return x * 1


class NegatedInput(Edge):
    """An input that carries the negative bit."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (torch.tensor([1 + 2j, 3 - 1j]).conj().imag,)

    dense = False

    def forward(self, x):
        x.add_(1)
        return x * 1


class Half(Edge):
    """Half precision."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(4, dtype=torch.float16),)

    def forward(self, x):
        y = x * x
        x.add_(1)
        return y, x * 1

    refused = True

    def reference(self, x):
        return x * x, (x + 1) * 1


class BFloat16(Edge):
    """bfloat16."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(4, dtype=torch.bfloat16),)

    def forward(self, x):
        x.mul_(3)
        return x.float() * 1


class Float8(Edge):
    """A dtype that knows few operations."""

    writes = [("copy_", "x")]

    @staticmethod
    def inputs():
        return ramp(4, dtype=torch.float32, grad=False).to(torch.float8_e4m3fn), ramp(4, grad=False)

    def forward(self, x, y):
        x.copy_(y)
        return x.float()


class Bytes(Edge):
    """uint8, which wraps around."""

    writes = [("sub_", "x")]

    @staticmethod
    def inputs():
        return (torch.tensor([0, 1, 255], dtype=torch.uint8),)

    def forward(self, x):
        x -= 1
        return x


class ChannelsLast(Edge):
    """A copy keeps the memory format of a dense input."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        x = ramp(2, 3, 4, 5, grad=False).contiguous(memory_format=torch.channels_last)
        return (x.requires_grad_(),)

    def forward(self, x):
        x.add_(1)
        assert x.is_contiguous(memory_format=torch.channels_last)
        return x, x[0]


class Transposed(Edge):
    """A dense input whose strides are not in order."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, 2, grad=False).t(),)

    def forward(self, x):
        v = x[:, 0]
        x.add_(1)
        return x, v


class SliceOfALargeStorage(Edge):
    """A slice with gaps of a big tensor: the rest of the storage is nobody's business."""

    writes = [("mul_", "x")]
    dense = False

    @staticmethod
    def inputs():
        return (ramp(100, 10, grad=False)[10:40:3, 2:9:2],)

    def forward(self, x):
        v = x[1:, 1]
        w = x.t()[0]
        x.mul_(2)
        return x * 1, v * 1, w * 1


class Expanded(Edge):
    """All elements of an expanded input share memory; a copy has memory for each."""

    writes = [("__setitem__", "x")]
    dense = False

    @staticmethod
    def inputs():
        return (ramp(1, 3, grad=False).expand(4, 3),)

    def forward(self, x):
        x[1] = 7.0
        return x * 1


class ExpandedInside(Edge):
    """An expanded view made inside: a write to one element is a write to all."""

    writes = [("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (torch.tensor(1),)

    def forward(self, x):
        a = x.expand(2)
        a[-1] = 3
        return a * 1


class Overlapping(Edge):
    """An input whose elements overlap."""

    writes = [("add_", "x")]
    dense = False

    @staticmethod
    def inputs():
        return (ramp(6, grad=False).as_strided((3, 3), (1, 1)),)

    def forward(self, x):
        x.add_(1)
        return x * 1


class TwoInputsOneStorage(Edge):
    """Two different tensors that share memory are two inputs: each has its own copy."""

    writes = [("mul_", "a"), ("add_", "b")]
    dense = False

    @staticmethod
    def inputs():
        base = ramp(4, grad=False)
        return base[:3], base[1:]

    def forward(self, a, b):
        a.mul_(2)
        b.add_(1)
        return a * 1, b * 1


class NonLeafInput(Edge):
    """An input in the middle of a graph."""

    writes = [("__setitem__", "attention")]

    @staticmethod
    def inputs():
        return (torch.relu(ramp(2, 3)),)

    def forward(self, attention):
        attention[:, 0] = 0
        return attention * 1


class ViewInput(Edge):
    """An input that is itself a view of a caller's tensor that requires a gradient."""

    writes = [("mul_", "x")]
    dense = False

    @staticmethod
    def inputs():
        return ((ramp(4, 3) * 1)[::2],)

    def forward(self, x):
        x.mul_(2)
        return x * 1


class ParameterInput(Edge):
    """A leaf parameter: on the module's side it may be written."""

    writes = [("mul_", "weight")]

    @staticmethod
    def inputs():
        return (torch.nn.Parameter(ramp(3).detach()),)

    def forward(self, weight):
        weight.mul_(2)
        return weight * 1


class LeafThatIsAView(Edge):
    """A leaf that is itself a view made under no_grad, written through views of it."""

    writes = [("mul_", "x"), ("add_", "x")]

    @staticmethod
    def inputs():
        with torch.no_grad():
            return (torch.ones(6, dtype=torch.float64).reshape(3, 2).requires_grad_(),)

    def forward(self, x):
        v = x[1:]
        v.mul_(2)
        rows = [x[i] for i in range(3)]
        x.add_(1)
        return x * 1, v * 1, torch.stack(rows)
