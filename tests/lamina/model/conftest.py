"""A model small enough to be saved, damaged and loaded in a test."""

from __future__ import annotations

import pytest
import transformers


@pytest.fixture
def config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
    )
