"""The architectures that build and run at this size, found by trying all of transformers."""

from __future__ import annotations

NAMES: tuple[str, ...] = (
    "albert", "bart", "beit", "bert", "convbert", "clip_vision_model", "cvt", "deberta", "falcon_mamba",
)  # fmt: skip
