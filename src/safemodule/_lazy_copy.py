"""`snapshot=True`: an independent copy of an input, made at once or, where that is safe, lazily.

`torch._lazy_clone` shares a storage until either side writes, so a snapshot that nobody disturbs costs
nothing. It has limits that its callers must know, so it is used on ordinary CPU tensors only, under
exactly the conditions of `may_share`; everything else is cloned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from safemodule._compat import lazy_clone, owned_elsewhere, set_grad_enabled


def may_share(x: Tensor) -> bool:
    """Tell whether a lazy copy of `x` is safe.

    - CPU: on CUDA the copy is made outside the current stream.
    - The storage is its own (`resizable`) and not shared: memory of numpy, DLPack, files and other
      processes is not, and a write of the owner would move it away from them.
    - Nobody else owns it: a DLPack capsule has the address too.
    - It covers its storage, densely: the whole storage is what is copied; an expanded tensor would
      keep stride 0. An empty one is mostly there to be resized, which a lazy copy does not survive.
    - No quantized tensor, no conj or neg bit, no complex tensor with a gradient: these crash or
      raise on the first write.
    """
    if lazy_clone is None or x.device.type != "cpu" or x.layout is not torch.strided:
        return False
    if x.is_quantized or x.is_conj() or x.is_neg() or (x.is_complex() and x.requires_grad):
        return False
    storage = x.untyped_storage()
    return (
        storage.resizable()
        and not owned_elsewhere(x)
        and not x.is_shared()
        and x.storage_offset() == 0
        and 0 < storage.nbytes() == x.numel() * x.element_size()
        and x.is_contiguous()
    )


def snapshot(x: Tensor, *, lazy: bool | None = None) -> Tensor:
    """Return an independent differentiable copy of `x`, also under `no_grad`.

    `lazy`: what `may_share` said, if it was asked before.
    """
    if lazy is None:
        lazy = may_share(x)
    before = torch.is_grad_enabled()
    set_grad_enabled(True)
    try:
        return lazy_clone(x) if lazy else x.clone()
    finally:
        set_grad_enabled(before)


def settle(x: Tensor) -> None:
    """Let a tensor have its memory as any other has, shared lazily no more.

    One that shares cannot be resized and then written: PyTorch replaces the memory, and goes on
    taking it for shared (c10/core/impl/COW.cpp). Copies nothing where no other shares it.
    """
    x.data_ptr()
