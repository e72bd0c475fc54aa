"""Tiny random models of many architectures, built from their configurations; nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModel

SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    "num_key_value_heads": 2, "d_ff": 64, "d_kv": 8, "head_dim": 8, "vocab_size": 99,
    "max_position_embeddings": 64, "n_positions": 64, "image_size": 32, "patch_size": 8,
    "num_channels": 3, "type_vocab_size": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def config_of(name: str) -> Any:
    """Return a small configuration of an architecture."""
    kind = CONFIG_MAPPING[name]
    usual = kind()
    small = {
        key: value
        for key, value in SMALL.items()
        if isinstance(getattr(usual, key, None), int) and not isinstance(getattr(usual, key), bool)
    }
    return kind(**small)


def model_of(name: str) -> torch.nn.Module:
    """Return a small random model, the same each time."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    return AutoModel.from_config(config_of(name))


def inputs_of(model: Any) -> dict[str, Any]:
    """Return inputs for a model, by the name of its main one."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 90, (2, 8), generator=generator)
    made: dict[str, Any] = {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 32, 32, generator=generator),
        "input_values": torch.randn(2, 4000, generator=generator),
        "input_features": torch.randn(2, 80, 64, generator=generator),
    }
    given = {model.main_input_name: made[model.main_input_name]}
    if model.main_input_name == "input_ids" and not getattr(model.config, "no_mask", False):
        given["attention_mask"] = torch.ones_like(ids)
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = torch.randint(3, 90, (2, 5), generator=generator)
    return given


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for item in output for tensor in tensors_of(item)]
    return []
