"""The model that the engine is measured with: 246 million parameters of LLaMA's shape, made up."""

from __future__ import annotations

import transformers

from laminabench.catalog.to_hf_config import to_hf_config

MODEL = "llama-mini"
LONGEST_TEXT = 65536


def mini_config() -> transformers.PreTrainedConfig:
    """As transformers builds it."""
    return transformers.AutoConfig.for_model(**to_hf_config(MODEL, LONGEST_TEXT))
