"""Writes through views, and views that see the write."""

from __future__ import annotations

import torch

from tests.zoo.base import Edge, ramp


class ChunkThenWrite(Edge):
    """Chunks are taken, then the input is written: they see it. Refused on clones."""

    writes = [("mul_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(4, 3),)

    def forward(self, x):
        a, b = x.chunk(2)
        x.mul_(2)
        return a + b, a * 1, b * 1

    def reference(self, x):
        a, b = (x * 2).chunk(2)
        return a + b, a * 1, b * 1


class WriteThenChunk(Edge):
    """The input is written, then its chunks are: they are views of the copy."""

    writes = [("mul_", "x"), ("add_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(4, 3),)

    def forward(self, x):
        x.mul_(2)
        a, b = x.chunk(2)
        a.add_(1)
        return x * 1, b * 1

    def reference(self, x):
        x = x * 2
        return torch.cat([x[:2] + 1, x[2:]]) * 1, x[2:] * 1


class WriteAChunk(Edge):
    """A function of many outputs made the view: autograd refuses such writes on clones."""

    writes = [("add_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(4, 3),)

    def forward(self, x):
        a, b = x.chunk(2)
        a.add_(1)
        return x * 1, a * b

    def reference(self, x):
        whole = torch.cat([x[:2] + 1, x[2:]])
        return whole * 1, whole[:2] * whole[2:]


class ViewOfAView(Edge):
    """A write through a transposed view of a view lands in the input."""

    writes = [("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (ramp(4, 3),)

    def forward(self, x):
        v = x[1:].t()
        v[0] = 7.0
        return x * 1, v * 2


class SiblingViews(Edge):
    """Two views overlap: a write to one shows in the other."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(6),)

    def forward(self, x):
        a, b = x[:4], x[2:]
        a.mul_(3)
        return b * 1, x.sum()


class ViewsOfEveryKind(Edge):
    """Each of PyTorch's view functions follows a later write; some are refused on clones."""

    writes = [("add_", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(2, 3, 4),)

    @staticmethod
    def views(x):
        """Return every kind of view of a tensor."""
        return [
            x[0], x[..., 1], x[:, None], x[1:, ::2], x.view(6, 4), x.view(-1), x.reshape(2, 12),
            x.transpose(0, 2), x.permute(2, 0, 1), x.mT, x.swapaxes(0, 1), x.movedim(0, 2),
            x.unsqueeze(0), x[:1].squeeze(0), x.flatten(1), x.unflatten(2, (2, 2)),
            x.narrow(1, 0, 2), x.select(1, 2), x.diagonal(), x.expand(2, 2, 3, 4), x.unfold(2, 2, 1),
            x.as_strided((2, 2), (12, 1)), x.view_as(x), x.expand_as(x),
            *x.unbind(), *x.split(1), *x.chunk(2, 2),
            *x.tensor_split(2, 2), *x.hsplit(3), x.adjoint(), torch.atleast_3d(x[0]), torch.ravel(x),
            torch.broadcast_to(x, (2, 2, 3, 4)), torch.swapdims(x, 0, 1), torch.moveaxis(x, 0, 1),
        ]  # fmt: skip

    def forward(self, x):
        views = self.views(x)
        x.add_(1)
        return [v * 1 for v in views]

    def reference(self, x):
        return [v * 1 for v in self.views(x + 1)]


class DetachedViewWrites(Edge):
    """`x.detach()` shares memory: a write to it shows in the input, without a gradient."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.detach().mul_(2)
        return x * 1


class DataWrites(Edge):
    """`x.data` shares memory too, and its writes move no version counter."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        x.data.add_(2)
        return x * 1


class NoOpTo(Edge):
    """`.to()` that changes nothing returns the input itself."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, grad=False),)

    def forward(self, x):
        y = x.to(torch.float64)
        y.add_(1)
        return x * 1, y


class NoOpContiguous(Edge):
    """`.contiguous()`, `.reshape` and `.expand` that change nothing give the input's memory."""

    writes = [("add_", "x"), ("mul_", "x"), ("sub_", "x")]

    @staticmethod
    def inputs():
        return (ramp(2, 3),)

    def forward(self, x):
        x.contiguous().add_(1)
        x.reshape(2, 3).mul_(2)
        x.expand(2, 3).sub_(3)
        return x * 1


class ReshapeThatCopies(Edge):
    """`reshape` of a transposed input is a copy: writing it is no write to the input."""

    @staticmethod
    def inputs():
        return (ramp(2, 3),)

    def forward(self, x):
        y = x.t().reshape(6)
        y.add_(1)
        return x * 1, y


class AdvancedIndexCopies(Edge):
    """`x[[0]]` is a copy: writing it is no write to the input."""

    @staticmethod
    def inputs():
        return (ramp(3, 2),)

    def forward(self, x):
        x[[0, 2]].clamp_(0, 1)
        x[x > 0].zero_()
        return x * 1


class IterationGivesViews(Edge):
    """Iterating over an input gives views, which may be written."""

    writes = [("sub_", "image"), ("div_", "image")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(3, 2),)

    def forward(self, image):
        for channel, mean in zip(image, (0.1, 0.2, 0.3), strict=True):
            channel.sub_(mean).div_(0.5)
        return image * 1

    def reference(self, image):
        return (image - torch.tensor([[0.1], [0.2], [0.3]], dtype=image.dtype)) / 0.5


class IndexChangesLater(Edge):
    """A view made by a 0-dim index tensor, which then changes, stays what it was."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(4, 2),)

    def forward(self, x):
        i = torch.tensor(1)
        row = x[i]
        i.add_(1)
        x.add_(1)
        return row * 1


class ShapeListChangesLater(Edge):
    """A view made by a list of sizes, which then changes, stays what it was."""

    writes = [("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(6),)

    def forward(self, x):
        shape = [2, 3]
        v = x.view(shape)
        shape[0], shape[1] = 3, 2
        x.add_(1)
        return v * 1


class MetadataThenWrite(Edge):
    """`unsqueeze_`, `t_` and `squeeze_` change the module's own handle; views follow later writes."""

    writes = [("unsqueeze_", "x"), ("transpose_", "x"), ("squeeze_", "x"), ("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(2, 3),)

    def forward(self, x):
        before = x[0]
        x.unsqueeze_(0)
        between = x[0, 1]
        x.transpose_(1, 2)
        x.squeeze_(0)
        after = x[2]
        x.add_(1)
        return x * 1, before * 1, between * 1, after * 1


class RealAndImaginaryParts(Edge):
    """`.real`, `.imag` and `view_as_real` are views of a complex input."""

    writes = [("mul_", "x"), ("add_", "x"), ("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (ramp(3, dtype=torch.complex128),)

    def forward(self, x):
        x.real.mul_(2)
        x.imag.add_(1)
        torch.view_as_real(x)[0] = 5.0
        return x * 1


class DtypeView(Edge):
    """A view of another dtype writes the input's bits."""

    writes = [("__setitem__", "x")]

    @staticmethod
    def inputs():
        return (ramp(2, grad=False, dtype=torch.float32),)

    def forward(self, x):
        bits = x.view(torch.int32)
        bits[0] = 0
        return x * 1, bits * 1


class ManyViewsOneWrite(Edge):
    """Fifty live views follow the write."""

    writes = [("mul_", "x")]

    @staticmethod
    def inputs():
        return (ramp(50, 2),)

    def forward(self, x):
        rows = [x[i] for i in range(50)]
        x.mul_(2)
        return torch.stack(rows)


class ViewUnderNoGrad(Edge):
    """A view made under no_grad and written with gradients on: refused on clones."""

    writes = [("__setitem__", "x")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(2, 2), ramp(2))

    def forward(self, x, p):
        with torch.no_grad():
            crop = x[:1]
        crop[:] = crop * 0.5 + p
        return x * 1

    def reference(self, x, p):
        return torch.cat([x[:1].detach() * 0.5 + p, x[1:]])


class AsStridedView(Edge):
    """`as_strided` on a slice means the slice's own geometry, also after a copy."""

    writes = [("mul_", "x"), ("add_", "x")]

    @staticmethod
    def inputs():
        return (ramp(6),)

    def forward(self, x):
        v = x.as_strided((2, 2), (2, 1), 1)
        v.mul_(3)
        w = x.as_strided((3,), (2,))
        x.add_(1)
        return x * 1, v * 1, w * 1
