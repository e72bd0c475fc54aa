"""`generate` with a key/value cache, guarded and plain."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from safemodule import SafeModule, guard


def models() -> list[Any]:
    """Return small models that generate."""
    torch.manual_seed(0)
    llama = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, vocab_size=99, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    gpt = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
    return [LlamaForCausalLM(llama).eval(), GPT2LMHeadModel(gpt).eval()]


def generate_equal() -> dict[str, bool]:
    """Compare the generated tokens for each cache and way of guarding."""
    prompt = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    verdicts: dict[str, bool] = {}
    for model in models():
        for cache in ("dynamic", "static"):
            if cache == "static" and not isinstance(model, LlamaForCausalLM):
                continue

            def generate(model: Any = model, cache: str = cache) -> torch.Tensor:
                return model.generate(
                    prompt.clone(), max_new_tokens=8, do_sample=False, cache_implementation=cache,
                    disable_compile=True,
                )  # fmt: skip

            kind = type(model)
            expected = generate()
            with guard(model):
                verdicts[f"{kind.__name__}, {cache} cache, guard"] = torch.equal(
                    generate(), expected
                )
            model.__class__ = type(kind.__name__, (SafeModule, kind), {})
            verdicts[f"{kind.__name__}, {cache} cache, SafeModule"] = torch.equal(
                generate(), expected
            )
            model.__class__ = kind
    return verdicts
