"""Models loaded: whatever goes wrong is told in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers

from lamina.model import CheckpointError, load_original

CONFIG = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    max_position_embeddings=128,
)


@pytest.fixture
def model() -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(CONFIG)


@pytest.mark.parametrize("name", ["pickle", "", None, ["dummy"]])
def test_an_unknown_load_format_is_told_with_the_known_ones(name: Any) -> None:
    with pytest.raises(CheckpointError, match=r'is unknown: give "safetensors" or "dummy"$'):
        load_original(CONFIG, None, torch.float32, name)


def test_advice_names_what_there_is(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(CheckpointError, match='load_format="dummy"'):
            load_original(CONFIG, folder, torch.float32, "safetensors")


@pytest.mark.parametrize(
    "error",
    [
        safetensors.SafetensorError("Error while deserializing header\nand more"),
        RecursionError("maximum recursion depth exceeded"),
        OverflowError("too large"),
        AttributeError("no attribute"),
        TypeError(),
        KeyError("metadata"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_transformers_raises_becomes_one_sentence(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise error

    model.save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", stumble)
    sentence = rf"^[^\n]*: transformers cannot load it \({type(error).__name__}[^\n]*\); fetch it again$"
    with pytest.raises(CheckpointError, match=sentence) as refused:
        load_original(CONFIG, tmp_path, torch.float32, "safetensors")
    assert refused.value.__cause__ is error
