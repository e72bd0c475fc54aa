"""Copies of the numbers in a tensor or an array, compared bit by bit: NaN equals itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["ArrayValues", "TensorValues"]


class TensorValues:
    """The numbers of a tensor.

    Args:
        tensor: Any tensor. One whose numbers cannot be read (meta tensors, foreign subclasses) is
            equal to any other.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._flat: Tensor | None = None
        self._shape = tuple(tensor.shape) if not tensor.is_nested else (-1,)
        if tensor.is_meta:
            return
        try:
            with torch.no_grad():
                self._flat = _dense(tensor).reshape(-1).clone()
        except (RuntimeError, NotImplementedError, TypeError):
            return

    def difference(self, now: TensorValues) -> str | None:
        """Say where the numbers differ; None where they are equal."""
        a, b = self._flat, now._flat
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            return None
        same = _bits(a).eq(_bits(b)).all(1)
        if bool(same.all()):
            return None
        first = int(same.int().argmin())
        places = int((~same).sum())
        at = list(_index(first, self._shape))
        return (
            f"values differ at {places} of {a.numel()} places, "
            f"first at {at}: {a[first].item()} -> {b[first].item()}"
        )


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    if tensor.is_quantized:
        return tensor.int_repr()
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor


def _bits(flat: Tensor) -> Tensor:
    return flat.view(torch.uint8).view(flat.numel(), -1)


def _index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element by its position in a contiguous tensor."""
    index: list[int] = []
    for size in reversed(shape):
        if size < 0:
            return (position,)
        position, at = divmod(position, size)
        index.append(at)
    return tuple(reversed(index))


class ArrayValues:
    """The numbers of an array of numpy.

    Args:
        array: An array whose items are no Python objects.
    """

    def __init__(self, array: Any) -> None:
        self._copy = array.copy(order="C")
        self._bytes: bytes = array.tobytes()

    def difference(self, now: ArrayValues) -> str | None:
        """Say where the numbers differ; None where they are equal."""
        a, b = self._bytes, now._bytes
        if a == b or len(a) != len(b):
            return None
        size = self._copy.itemsize
        places = [i for i in range(0, len(a), size) if a[i : i + size] != b[i : i + size]]
        first = places[0] // size
        return (
            f"values differ at {len(places)} of {self._copy.size} places, "
            f"first at {list(_index(first, self._copy.shape))}: "
            f"{self._copy.flat[first]} -> {now._copy.flat[first]}"
        )
