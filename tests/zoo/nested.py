"""Guarded modules inside the module."""

from __future__ import annotations

import torch
from torch import nn

from safemodule import SafeModule, freeze
from tests.zoo.base import Edge, ramp


class Identity(SafeModule):
    """Returns what it is given."""

    def forward(self, x):
        return x


class FirstHalf(SafeModule):
    """Returns a view of what it is given."""

    def forward(self, x):
        return x[: len(x) // 2]


class Whole(SafeModule):
    """Returns a view of all of it."""

    def forward(self, x):
        return x[:]


class Doubles(SafeModule):
    """Writes what it is given, and returns it."""

    def forward(self, t):
        return t.mul_(2)


class InnerIdentity(Edge):
    """What an inner guarded module returns unwritten is the outer's input, and writes there stay."""

    writes = [("add_", "x")]

    def __init__(self):
        super().__init__()
        self.inner = Identity()

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        y = self.inner(x)
        y.add_(1)
        return x * 1, y * 1


class InnerView(Edge):
    """A view returned by an inner guarded module is a view of the outer's input."""

    writes = [("add_", "x"), ("mul_", "x")]

    def __init__(self):
        super().__init__()
        self.inner = FirstHalf()

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        v = self.inner(x)
        v.add_(1)
        x.mul_(2)
        return x * 1, v * 1


class InnerViewOfACopy(Edge):
    """The same after the outer has written its input."""

    writes = [("mul_", "x"), ("add_", "x")]

    def __init__(self):
        super().__init__()
        self.inner = FirstHalf()

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        x.mul_(2)
        v = self.inner(self.inner(x))
        v.add_(1)
        return x * 1, v * 1


class InnerWrites(Edge):
    """An inner guarded module cannot write the outer's input."""

    writes = [("mul_", "t")]

    def __init__(self):
        super().__init__()
        self.inner = Doubles()

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        y = self.inner(x)
        return x * 1, y

    refused = True

    def reference(self, x):
        return x * 1, x * 2


class InnerWritesOfALocal(Edge):
    """Nor a local tensor that autograd has saved."""

    writes = [("mul_", "t")]

    def __init__(self):
        super().__init__()
        self.inner = Doubles()

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        y = x.exp()
        z = self.inner(y)
        return y * y, z

    refused = True

    def reference(self, x):
        y = x.exp()
        return y * y, y * 2


class ThroughAnUnguardedModule(Edge):
    """A plain module between two guarded ones needs nothing."""

    writes = [("add_", "x")]

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Identity(), Identity(), nn.Flatten(0), FirstHalf())

    @staticmethod
    def inputs():
        return (ramp(2, 2),)

    def forward(self, x):
        v = self.net(x)
        v.add_(1)
        return x * 1, v * 1


class InnerViewOfALeafThatIsAView(Edge):
    """The same where the caller's leaf is itself a view of something."""

    writes = [("mul_", "x")]
    dense = False

    def __init__(self):
        super().__init__()
        self.inner = Whole()

    @staticmethod
    def inputs():
        return (ramp(3, 4, grad=False).permute(1, 0).requires_grad_(),)

    def forward(self, x):
        v = self.inner(x[:1])
        x.mul_(2)
        return v * 1


class FrozenLocal(Edge):
    """`freeze` of a local tensor, used, written and used again."""

    writes = [("__setitem__", "t")]
    refused = True

    @staticmethod
    def inputs():
        return (ramp(4),)

    def forward(self, x):
        t = freeze(x.exp(), name="t")
        y = t * t
        t[1:] = 3.0
        return y, t * 1

    def reference(self, x):
        t = x.exp()
        return t * t, torch.cat([t[:1], torch.full_like(t[1:], 3.0)])


class Recursive(Edge):
    """A guarded module that calls itself."""

    writes = [("add_", "x")]

    def __init__(self):
        super().__init__()
        self.inner = CountDown()

    @staticmethod
    def inputs():
        return (ramp(3),)

    def forward(self, x):
        return self.inner(x, 4), x * 1

    refused = True

    def reference(self, x):
        total = x * 0
        for depth in range(4, 0, -1):
            total = total + (x + (5 - depth)) * depth
        return total, x * 1


class CountDown(SafeModule):
    """Adds one in place at each depth and sums up what it saw."""

    def forward(self, x, depth):
        if depth == 0:
            return x * 0
        x.add_(1)
        return x * depth + self(x, depth - 1)
