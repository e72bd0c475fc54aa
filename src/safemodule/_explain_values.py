"""Checksums of saved values, for writes that no version counter counts.

A checksum is a sum of the bits times odd weights, modulo 2**64: no single change goes unseen, and
it stays on the device of the tensor, so that taking one waits for nothing.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from safemodule import _explain_compat as compat

__all__ = ["checksum", "same"]

# Bounds the memory taken beside the tensor: 8 MiB of weights and products at a time.
_CHUNK: Final = 1 << 20
_FACTOR: Final = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, as a signed number; the golden ratio's bits

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> Any:
    """Return the checksum of a tensor's values, or None for a kind that has no plain memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return None
    if compat.has_own_dispatch(type(tensor)):  # a wrapper: with its own code off it has no memory
        return None
    try:
        # Off: the modes, which would see this; the hooks are off inside of one already.
        with compat.modes_off(), torch.no_grad():
            return _sum(tensor)
    except (RuntimeError, NotImplementedError):  # inside of a transform
        return None


def same(tensor: Tensor, before: Any) -> bool:
    """Tell whether the values are those of which the checksum was taken; waits for the device."""
    now = checksum(tensor)
    if now is None:
        return True
    with compat.modes_off():
        return bool((now == before).item())


def _sum(tensor: Tensor) -> Tensor:
    bits = tensor.resolve_conj().resolve_neg()
    if bits.is_complex():
        bits = torch.view_as_real(bits)
    for dim, stride in enumerate(bits.stride()):
        if stride == 0:  # an expanded dimension repeats what one row says
            bits = bits.narrow(dim, 0, min(1, bits.shape[dim]))
    flat = bits.contiguous().view(_INTEGERS[bits.element_size()]).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(torch.int64)
        weights = torch.arange(start, start + part.numel(), device=flat.device)
        # Odd and far apart: (2 i + 1) * factor, mixed once more so that neighbours do not cancel.
        weights = (weights * 2 + 1) * _FACTOR
        weights = (weights ^ (weights >> 29)) | 1
        total += (part * weights).sum()
    return total
