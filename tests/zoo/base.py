"""The base of every module in the zoo."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn


class Edge(nn.Module):
    """A module that probes one edge."""

    writes: ClassVar[list[tuple[str, str]]] = []
    """Op and argument of each record, in order."""
    dense: ClassVar[bool] = True
    """False where an input has gaps or overlaps: strides then are those of the plain module."""
    needs_grad: ClassVar[bool] = False
    """True where forward differentiates, so that it makes no sense under no_grad."""
    refused: ClassVar[bool] = False
    """True where autograd refuses this forward on clones: `reference` is the oracle then."""

    @staticmethod
    def inputs() -> tuple[Any, ...]:
        """Return the positional arguments; the same values at each call."""
        raise NotImplementedError

    def reference(self, *args: Any) -> Any:
        """Compute the same out of place. Needed where `refused`."""
        raise NotImplementedError


def ramp(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return distinct values around zero, a leaf."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count, dtype=torch.float64) - count / 3 + 0.1) / 4
    return values.reshape(shape).to(dtype).clone().requires_grad_(grad)
