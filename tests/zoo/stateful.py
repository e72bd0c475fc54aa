"""Modules that keep, copy or hand on their inputs in unusual ways."""

from __future__ import annotations

import copy
import io
import pickle

import torch

from tests.zoo.base import Edge, ramp


class StashThenWrite(Edge):
    """An input kept on the module is the same handle: it sees later writes."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        self.kept = x
        x.add_(1)
        return self.kept * 1


class DeepCopied(Edge):
    """A deep copy is independent and plain."""

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        y = copy.deepcopy(x)
        y.add_(1)
        assert type(y) is torch.Tensor
        return x * 1, y


class DeepCopyOfAWritten(Edge):
    """The deep copy of a written input holds the written values."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        x.mul_(2)
        y = copy.deepcopy({"x": [x]})
        y["x"][0].add_(1)
        return x * 1, y


class Pickled(Edge):
    """Pickle and torch.save see a plain tensor."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        a = pickle.loads(pickle.dumps(x))
        x.mul_(2)
        buffer = io.BytesIO()
        torch.save({"x": x}, buffer)
        buffer.seek(0)
        b = torch.load(buffer)["x"]
        assert type(a) is torch.Tensor
        assert type(b) is torch.Tensor
        return a, b


class Numpy(Edge):
    """An array handed out may be written by anyone: it is the copy's memory."""

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        array = x.numpy()
        array[0] = 7.0
        return x * 1


class NumpyOfAView(Edge):
    """The array of a view shares memory with the module's input, as it does for a clone."""

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        array = x[1:].detach().numpy()
        array += 1
        return x * 1


class Dlpack(Edge):
    """A DLPack capsule likewise."""

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        y = torch.from_dlpack(x)
        y.add_(1)
        return x * 1


class Storage(Edge):
    """Writes through the storage."""

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        x.untyped_storage().fill_(0)
        return x * 1


class Attributes(Edge):
    """Attributes set on the handle are the handle's own."""

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.tag = "mine"
        return x * 1, x.tag


class ReadsEverything(Edge):
    """All one can ask of a tensor without changing it."""

    @staticmethod
    def inputs():
        return (ramp(2, 3, grad=False),)

    def forward(self, x):
        return [
            x.shape, x.dtype, x.ndim, x.size(), x.size(0), x.stride(), x.numel(), x.dim(), len(x),
            x.is_contiguous(), x.storage_offset(), x.element_size(), x.is_floating_point(),
            x.requires_grad, x.is_leaf, x.grad_fn is None, x.layout, x.device.type, x.itemsize,
            x.nbytes, x.tolist(), x.sum().item(), float(x[0, 0]), bool((x > 0).any()), x.max(),
            repr(x), str(x), f"{x[0, 0]:.2f}", x.T, x.H, x.mT, 3 in x, x.is_cuda, x.is_sparse,
            x.argmax(), hash(x) == hash(x), isinstance(x, torch.Tensor), torch.is_tensor(x),
            x.output_nr, x.grad, x.is_sparse_csr, x.is_quantized,
        ]  # fmt: skip


class UsedAsAKey(Edge):
    """Tensors hash by identity: as keys of a dict, in a set."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return ramp(3), ramp(2)

    def forward(self, x, y):
        notes = {x: 1, y: 2}
        x.add_(1)
        return notes[x], notes[y], x in {x, y}
