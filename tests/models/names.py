"""The architectures that build and run at this size, found by trying all of transformers."""

from __future__ import annotations

NAMES: tuple[str, ...] = (
    "afmoe", "aimv2_vision_model", "albert", "apertus", "arcee", "aria_text", "bart", "beit",
    "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet", "blenderbot",
    "blenderbot-small", "bloom", "camembert", "canine", "chinese_clip_vision_model",
    "clip_text_model", "clip_vision_model", "cohere", "cohere2", "cohere2_moe", "convbert",
    "cpmant", "ctrl", "cvt", "cwm", "data2vec-audio", "data2vec-text", "data2vec-vision",
    "deberta", "deberta-v2", "deit", "diffllama", "dinov2", "dinov2_with_registers", "dinov3_vit",
    "distilbert", "doge", "dpr", "dpt", "electra", "ernie", "ernie4_5", "ernie4_5_moe", "eurobert",
    "exaone", "exaone4", "falcon_h1", "falcon_mamba", "gpt-sw3", "gpt2", "llama", "mamba", "mbart",
    "mistral", "opt", "phi", "qwen2", "roberta", "rwkv", "t5", "vit", "wav2vec2", "xlm-roberta",
)  # fmt: skip
