"""Small programs that PyTorch refuses, for the tests of `explain()`.

In each, `# saves` marks the line that saves the value, `# writes` those that overwrite it and
`# makes` the one where it became what must not be written.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

BACKWARD: list[Case] = []
FORWARD: list[Case] = []


@dataclass
class Case:
    """A program, and what an explanation of its error must say."""

    run: Callable[[], object]
    name: str
    tensor: str
    op: str
    """Words in the text of the save, or of the refused write."""
    role: str

    def lines(self, mark):
        """Return the numbers of the lines that carry a mark."""
        source, first = inspect.getsourcelines(self.run)
        return [first + n for n, line in enumerate(source) if line.rstrip().endswith(f"# {mark}")]

    @property
    def id(self):
        """The name of the program."""
        return self.run.__name__


def _case(group, name, tensor, op, role=""):
    def register(run):
        group.append(Case(run, name, tensor, op, role))
        return run

    return register


def backward(name, tensor, op, role=""):
    """Register a program that fails in backward."""
    return _case(BACKWARD, name, tensor, op, role)


def forward(name, tensor, op, role=""):
    """Register a program whose write is refused at once."""
    return _case(FORWARD, name, tensor, op, role)


@backward("mask", "bool[4, 5] cpu", "by masked_fill, as its argument mask")
def decoding_loop():
    """The autoregressive decoder: its mask is saved in each step and marked after it."""
    emb = torch.randn(4, 5, 3)
    q = nn.Linear(3, 3)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    loss = torch.zeros(())
    for _ in range(3):
        logp = q(emb).sum(-1).masked_fill(mask, -1e9).log_softmax(-1)  # saves
        v, a = logp.max(-1); mask.scatter_(1, a[:, None], True)  # noqa: E702  # fmt: skip  # writes
        loss = loss + v.sum()
    loss.backward()


@backward(
    "mask", "bool[4, 5] cpu", "by masked_fill", "argument of visited_mask.<locals>.Step.forward"
)
def visited_mask():
    """The same with the step as a module of its own."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(3, 3)

        def forward(self, emb, mask):
            return self.q(emb).sum(-1).masked_fill(mask, -1e9).log_softmax(-1)  # saves

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Step()

        def forward(self, emb, mask):
            total = 0.0
            for _ in range(3):
                v, a = self.step(emb, mask).max(-1)
                mask.scatter_(1, a[:, None], True)  # writes
                total = total + v
            return total.sum()

    Decoder()(torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=torch.bool)).backward()


@backward("y", "float32[3] cpu", "by sigmoid, as its result")
def result_of_an_activation():
    """An activation needs its result, which is shifted."""
    x = torch.randn(3, requires_grad=True)
    y = torch.sigmoid(x)  # saves
    y += 1  # writes
    y.sum().backward()


@backward("att", "float32[1, 1, 4, 4] cpu", "by relu, as its result")
def border_zeroing():
    """The borders of an attention map are zeroed by slices, in two lines."""
    w = torch.ones(1, requires_grad=True)
    att = torch.relu(torch.randn(1, 1, 4, 4) * w)  # saves
    att[:, :, :, 0] = 0  # writes
    att[:, :, 0, :] = 0  # writes
    att.sum().backward()


@backward("idx", "int64[2, 2] cpu", "by gather, as its argument index", "argument of")
def shifted_index():
    """An index is shifted after it was used."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Linear(4, 4)

        def forward(self, x, idx):
            y = self.p(x).gather(1, idx).sum()  # saves
            idx += 1  # writes
            return y

    Head()(torch.randn(2, 4), torch.zeros(2, 2, dtype=torch.long)).backward()


@backward("x", "float32[2, 3] cpu", "by mm, as its argument self", "argument of")
def refilled_input():
    """The next batch is read into the buffer of the last one."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            out = (x @ self.w).sum()  # saves
            x.copy_(torch.zeros_like(x))  # writes
            return out

    Net()(torch.randn(2, 3)).backward()


@backward("h", "float32[2, 3] cpu", "by pow, as its argument self")
def episode_reset():
    """A recurrent state is reset by index assignment."""
    cell = nn.GRUCell(2, 3)
    h = torch.zeros(2, 3)
    done = torch.tensor([True, False])
    out = torch.zeros(())
    for x in torch.randn(3, 2, 2):
        h = cell(x, h)
        out = out + h.pow(2).sum()  # saves
        h[done] = 0.0  # writes
    out.backward()


@backward("d.2.weight", "float32[4, 1] cpu", "by addmm, as its argument mat2", "parameter of")
def optimizer_step_between_backwards():
    """The discriminator is updated between two backwards through it."""

    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.d = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
            self.opt = torch.optim.SGD(self.d.parameters(), lr=0.1)

        def forward(self, fake):
            out = self.d(fake)  # saves
            out.mean().backward(retain_graph=True)
            self.opt.step()  # writes
            return (1 - out).mean()

    gan = Gan()
    gan(torch.randn(2, 3, requires_grad=True)).backward()


@backward("running", "float32[3] cpu", "by mul, as its argument self", "buffer of")
def buffer_write():
    """A buffer is averaged in place, as a data-parallel wrapper would overwrite it."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running", torch.ones(3))

        def forward(self, x):
            y = self.running * x  # saves
            self.running.lerp_(x.detach(), 0.1)  # writes
            return y.sum()

    scale = Scale()
    scale(torch.randn(3, requires_grad=True)).backward()


@backward("x", "float32[3] cpu", "at version 0")
def checkpointed_argument():
    """Checkpointing keeps the argument, to compute again from it."""
    w = torch.ones(3, requires_grad=True)

    def f(t):
        t.mul_(2)  # writes
        return t * w

    x = torch.ones(3)
    checkpoint(f, x, use_reentrant=False).sum().backward()  # saves


@backward("x", "float32[3] cpu", "by CheckpointFunction, a custom Function")
def reentrant_checkpointed_argument():
    """The older kind of checkpoint keeps the argument in a custom Function."""
    w = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    y = checkpoint(torch.mul, x, w, use_reentrant=True)  # saves
    x.zero_()  # writes
    y.sum().backward()


@backward("x", "float32[3] cpu", "by Square, a custom Function, as x")
def input_of_a_function():
    """A custom Function saves its input."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = torch.randn(3, requires_grad=True) * 1
    y = Square.apply(x)  # saves
    x.zero_()  # writes
    y.sum().backward()


@backward("out", "float32[3] cpu", "by Exp, a custom Function, as y")
def output_of_a_function():
    """A custom Function saves its output."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return y * grad

    x = torch.randn(3, requires_grad=True)
    out = Exp.apply(x)  # saves
    out.add_(1)  # writes
    out.sum().backward()


@backward("base", "float32[4] cpu", "by mul, as its argument")
def write_through_a_view():
    """A view is written, its base was saved."""
    w = torch.ones(4, requires_grad=True)
    base = torch.zeros(4)
    y = base * w  # saves
    view = base[1:].view(3, 1)
    view.fill_(2)  # writes
    y.sum().backward()


@backward("base", "float32[4] cpu", "by mul, as its argument")
def write_into_out():
    """A result is written into a tensor that was saved."""
    w = torch.ones(4, requires_grad=True)
    base = torch.zeros(4)
    y = base * w  # saves
    torch.add(torch.ones(4), 1, out=base)  # writes
    y.sum().backward()


@backward("x", "float32[3] cpu", "by mul, as its argument")
def all_at_once():
    """A list of tensors is written by one operation."""
    w = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    y = x * w  # saves
    torch._foreach_add_([torch.ones(2), x], 1.0)  # writes
    y.sum().backward()


@backward("x", "float32[1, 3] cpu", "by pow")
def write_in_a_chain():
    """A call that spans lines, as a formatter would break it."""
    x = torch.randn(1, 3, requires_grad=True) * 1
    y = x.pow(2).sum()  # saves
    (
        x.view(3).unsqueeze(0).mul_(2)  # writes
    )
    y.backward()


@forward("x", "float32[3] cpu", "mul_", "argument of")
def leaf():
    """An argument that is a leaf is written."""

    class Net(nn.Module):
        def forward(self, x):
            return x.mul_(2)  # writes

    given = torch.ones(3, requires_grad=True)  # makes
    Net()(given)


@forward("pos", "float32[3, 4] cpu", "+=")
def leaf_variable():
    """A local leaf is written by an operator."""
    pos = torch.randn(3, 4)
    pos.requires_grad_()  # makes
    pos += 1  # writes


@forward("self.w", "float32[3] cpu", "add_", "parameter w of Net")
def parameter():
    """A module writes its own parameter."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.w.add_(x)  # writes
            return self.w

    Net()(torch.ones(3))


@forward("x", "float32[3] cpu", "add_", "argument of leaf_given_without_a_name.<locals>.shift")
def leaf_given_without_a_name():
    """The caller has no name for the leaf that it passes."""

    def shift(x):
        x.add_(1)  # writes

    shift(torch.ones(3, requires_grad=True))


@forward("", "unknown", "add_")
def leaf_without_a_name():
    """Nobody has a name for the leaf."""
    torch.ones(3, requires_grad=True).add_(1)  # writes


@forward("v", "float32[1] cpu", "add_")
def named_view_of_a_leaf():
    """A view of a leaf has a name of its own."""
    w = torch.ones(3, requires_grad=True)  # makes
    v = w[:1]
    v.add_(1)  # writes


@forward("boxes", "float32[1, 4] cpu", "item assignment", "argument of")
def view_of_a_leaf():
    """A slice of a leaf is assigned to."""

    class Net(nn.Module):
        def forward(self, boxes):
            boxes[..., 2] = boxes[..., 0] + boxes[..., 2]  # writes
            return boxes

    given = torch.ones(1, 4, requires_grad=True)  # makes
    Net()(given)


@forward("c", "float32[2, 2] cpu", "sub_")
def one_of_many_views():
    """Iterating over a tensor gives views that must not be written."""
    img = torch.rand(3, 2, 2, requires_grad=True) * 1
    for c, m in zip(img, (0.1, 0.2, 0.3), strict=True):  # makes
        c.sub_(m)  # writes


@forward("crop", "float32[1, 2, 2] cpu", "item assignment")
def view_made_under_no_grad():
    """A crop is taken without gradients and assigned to with gradients."""
    p = torch.zeros(1, 2, 2, requires_grad=True)
    x = torch.ones(2, 2, 2)
    with torch.no_grad():
        crop = x[:1]  # makes
    crop[:] = crop * 0.5 + p  # writes


@forward("b", "float32[3] cpu", "add_")
def view_of_a_custom_function():
    """A custom Function returns a view of its input."""

    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # makes
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    a = torch.ones(3, requires_grad=True) * 1
    b = View.apply(a)
    b.add_(1)  # writes


@forward("", "float32[2, 3] cpu", "in module 1 (ReLU)")
def full_backward_hook():
    """The hook makes the input of the module a view."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    net[1].register_full_backward_hook(lambda m, gi, go: None)
    net(torch.randn(2, 3))  # writes


@forward("loss", "float32[] cpu", "/=")
def inference_tensor():
    """A metric made under inference mode is averaged outside of it."""
    x = torch.ones(3)
    with torch.inference_mode():
        loss = x.pow(2).sum()  # makes
    loss /= 4  # writes


@forward("x", "float32[3] cpu", "cannot be saved")
def inference_tensor_saved():
    """A tensor made under inference mode takes part in a graph."""
    w = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        x = torch.ones(3)  # makes
    w * x  # writes


@forward("", "unknown", "cannot be saved")
def inference_tensor_saved_without_a_name():
    """What takes part is an item of a list."""
    w = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        batch = [torch.ones(3)]
    w * batch[0]  # writes


@forward("a", "float32[2] cpu", "add_")
def expanded():
    """All elements of an expanded tensor are one."""
    x = torch.tensor(1.0)
    a = x.expand(2)  # makes
    a.add_(1)  # writes


@forward("x", "float32[3] cpu", "mul_")
def partial_overlap():
    """A tensor is multiplied by a shifted view of itself."""
    base = torch.ones(4)
    x = base[:3]  # makes
    x.mul_(base[1:])  # writes


@forward("y", "float32[2, 2] cpu", "+=", "the same tensor as argument x of")
def dropout_in_evaluation():
    """Dropout in evaluation returns its input."""

    class Net(nn.Module):
        def forward(self, x):
            y = F.dropout(x, 0.5, training=False)
            y += y  # writes
            return y

    given = torch.ones(2, 2, requires_grad=True)  # makes
    Net()(given)
