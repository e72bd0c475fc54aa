"""The many ways to write."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.base import Edge, ramp


class Method(Edge):
    """The plain case."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return x.add_(1)


class Augmented(Edge):
    """Every augmented assignment writes its left side."""

    writes = [("add_", "x"), ("sub_", "x"), ("mul_", "x"), ("div_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x += 1
        x -= 2
        x *= 3
        x /= 4
        return x


class AugmentedIntegers(Edge):
    """The augmented assignments that integers have."""

    writes = [
        ("__iand__", "x"), ("__ior__", "x"), ("__ixor__", "x"), ("__ilshift__", "x"),
        ("__irshift__", "x"), ("floor_divide_", "x"), ("remainder_", "x"), ("pow_", "x"),
    ]  # fmt: skip

    @staticmethod
    def inputs():
        return (torch.arange(1, 6),)

    def forward(self, x):
        x &= 7
        x |= 8
        x ^= 3
        x <<= 2
        x >>= 1
        x //= 2
        x %= 11
        x **= 2
        return x


class ListElement(Edge):
    """`+=` on a list element writes the tensor and assigns the entry."""

    writes = [("add_", "xs[0]")]

    @staticmethod
    def inputs():
        return ([ramp(3), ramp(2)],)

    def forward(self, xs):
        first = xs[0]
        first += 1
        return xs[0] * 1, xs[1] * 1


class IndexAssignments(Edge):
    """Every kind of index."""

    writes = [("__setitem__", "x")] * 3 + [("add_", "x")] + [("__setitem__", "x")] * 5

    @staticmethod
    def inputs():
        return ramp(4, 3), torch.tensor([True, False, True, False])

    def forward(self, x, mask):
        x[0] = 1.0
        x[1, 2] = x[0, 0] * 2
        x[:, 1] = 3.0
        x[..., -1] += 4.0
        x[[0, 3]] = x[[3, 0]]
        x[mask] = 5.0
        x[torch.tensor([2]), None] = 6.0
        x[x > 5.5] = -1.0
        return x


class OutTuple(Edge):
    """`out=` takes a tuple of tensors, all of them written."""

    writes = [("max(out=)", "values"), ("max(out=)", "indices")]

    @staticmethod
    def inputs():
        return ramp(3, 2, grad=False), ramp(2, grad=False), torch.zeros(2, dtype=torch.long)

    def forward(self, x, values, indices):
        torch.max(x, 0, out=(values, indices))
        return values, indices


class OutKeyword(Edge):
    """`out=` writes its argument, and returns it."""

    writes = [("add(out=)", "buffer")]

    @staticmethod
    def inputs():
        return ramp(3, grad=False), ramp(3, grad=False)

    def forward(self, x, buffer):
        return torch.add(x, 1, out=buffer)


class OutAlias(Edge):
    """`out=` may be the input itself."""

    writes = [("mul(out=)", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        torch.mul(x, x, out=x)
        return x


class Foreach(Edge):
    """`_foreach_` functions write every tensor of a list."""

    writes = [("_foreach_add_", "xs[0]"), ("_foreach_add_", "xs[1]"), ("_foreach_mul_", "xs[0]")]

    @staticmethod
    def inputs():
        return ([ramp(3), ramp(2)],)

    def forward(self, xs):
        torch._foreach_add_(xs, 1.0)
        torch._foreach_mul_([xs[0]], 2.0)
        return xs[0] * 1, xs[1] * 1


class FunctionalInplace(Edge):
    """`inplace=True` of torch.nn.functional."""

    writes = [("relu(inplace=True)", "x"), ("leaky_relu(inplace=True)", "y")]

    @staticmethod
    def inputs():
        return ramp(4), ramp(4)

    def forward(self, x, y):
        return F.relu(x, inplace=True) + F.leaky_relu(y, 0.3, True)


class InplaceSubmodule(Edge):
    """An unguarded `nn.ReLU(inplace=True)` within."""

    writes = [("relu(inplace=True)", "x")]

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        return self.relu(x) + x


class DropoutInEval(Edge):
    """`F.dropout(training=False)` returns its input, which is then written."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        y = F.dropout(x, 0.5, training=False)
        y += y
        return y


class DropoutThatWritesNothing(Edge):
    """`inplace=True` without training writes nothing."""

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return F.dropout(x, 0.5, training=False, inplace=True) * 1


class RunningStatistics(Edge):
    """Batch norm in training writes the statistics it is given."""

    writes = [("batch_norm(training=True)", "mean"), ("batch_norm(training=True)", "var")]

    @staticmethod
    def inputs():
        return ramp(4, 2), torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def forward(self, x, mean, var):
        y = F.batch_norm(x, mean, var, training=True)
        return y, mean * 1, var * 1


class StatisticsInEval(Edge):
    """In evaluation batch norm reads them only."""

    @staticmethod
    def inputs():
        return ramp(4, 2), torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def forward(self, x, mean, var):
        return F.batch_norm(x, mean, var, training=False)


class EmbeddingMaxNorm(Edge):
    """An embedding with `max_norm` renormalises the weight it is given."""

    writes = [("embedding(max_norm=)", "weight")]

    @staticmethod
    def inputs():
        return torch.tensor([0, 2]), ramp(3, 2, grad=False)

    def forward(self, indices, weight):
        return F.embedding(indices, weight, max_norm=0.1), weight * 1


class CopyAndFill(Edge):
    """`copy_`, `fill_`, `zero_`, `index_*_`, `scatter_`, `masked_fill_`."""

    writes = [
        ("copy_", "x"), ("fill_", "x"), ("index_fill_", "x"), ("index_copy_", "x"),
        ("index_add_", "x"), ("scatter_", "x"), ("scatter_add_", "x"), ("masked_fill_", "x"),
        ("masked_scatter_", "x"), ("index_put_", "x"), ("zero_", "x"),
    ]  # fmt: skip

    @staticmethod
    def inputs():
        return ramp(3, 2), ramp(3, 2)

    def forward(self, x, y):
        x.copy_(y * 2)
        x[:1].fill_(1.5)
        i = torch.tensor([0, 2])
        x.index_fill_(0, i[:1], 2.0)
        x.index_copy_(0, i, y[:2])
        x.index_add_(0, i, y[1:])
        x.scatter_(1, torch.zeros(3, 1, dtype=torch.long), y[:, :1])
        x.scatter_add_(1, torch.ones(3, 1, dtype=torch.long), y[:, 1:])
        x.masked_fill_(y > 0.4, 3.0)
        x.masked_scatter_(y < -0.3, y.flatten())
        x.index_put_((i[:1],), y[2], accumulate=True)
        x[2:].zero_()
        return x * 1


class SetterOfData(Edge):
    """`x.data = value` gives the module other values, never the caller."""

    writes = [("data=", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        v = x[:1] * 1
        x.data = torch.full_like(x, 7.0)
        return x * 1, v


class SettersOfParts(Edge):
    """`x.real = ` and `x.imag = ` write a complex input."""

    writes = [("real=", "x"), ("imag=", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, dtype=torch.complex128, grad=False),)

    def forward(self, x):
        x.real = x.imag * 2 + 1
        x.imag = x.real - 3
        return x * 1


class UnderNoGrad(Edge):
    """A write under no_grad changes the value, and the gradient flows as if it had not."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        with torch.no_grad():
            x.mul_(2)
        return x * 3


class InsideInferenceMode(Edge):
    """A write in `inference_mode` inside forward."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        with torch.inference_mode():
            x.mul_(2)
        return x * 3


class RandomInPlace(Edge):
    """Random fills, from the same generator state."""

    writes = [("normal_", "x"), ("uniform_", "x"), ("bernoulli_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, 2, grad=False),)

    def forward(self, x):
        x.normal_()
        x[0].uniform_()
        x[1].bernoulli_(0.5)
        return x * 1


class InitFunctions(Edge):
    """`torch.nn.init` writes what it is given."""

    writes = [("fill_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, 2),)

    def forward(self, x):
        nn.init.ones_(x)
        return x * 2


class CustomOperator(Edge):
    """A custom op says in its schema what it writes."""

    @staticmethod
    def inputs():
        return ramp(3, grad=False), ramp(3, grad=False)

    writes = [("safemodule_zoo.accumulate", "total")]

    def forward(self, total, x):
        torch.ops.safemodule_zoo.accumulate(total, x)
        return total * 1


@torch.library.custom_op("safemodule_zoo::accumulate", mutates_args=("total",))
def _accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


class AtenOverload(Edge):
    """`torch.ops.aten` packets and overloads."""

    writes = [("aten.add_", "x"), ("aten.mul_.Tensor", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        torch.ops.aten.add_(x, 1)
        torch.ops.aten.mul_.Tensor(x, torch.tensor(2.0, dtype=x.dtype))
        return x


class Resized(Edge):
    """`resize_` changes shape without moving the version counter."""

    writes = [("resize_", "x")]

    @staticmethod
    def inputs():
        return (ramp(4, grad=False),)

    def forward(self, x):
        x.resize_(4, 1)
        return x * 1


class SetToAnotherTensor(Edge):
    """`set_`, which PyTorch does not route through tensor subclasses."""

    writes = [("set_", "x")]

    @staticmethod
    def inputs():
        return ramp(3, grad=False), ramp(2, grad=False)

    def forward(self, x, y):
        x.set_(y * 2)
        return x * 1


class SwapColumns(Edge):
    """A right side that reads what the left side writes."""

    writes = [("add_", "boxes"), ("__setitem__", "boxes"), ("__setitem__", "boxes")]

    @staticmethod
    def inputs():
        return (ramp(3, 4),)

    def forward(self, boxes):
        boxes[:, 2:] += boxes[:, :2]
        boxes[:, [0, 1]] = boxes[:, [1, 0]]
        return boxes.sum(0), boxes * 1
