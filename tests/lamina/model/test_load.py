"""Models loaded: whatever goes wrong is told in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers

from lamina.model import CheckpointError, load_original


@pytest.fixture
def model(config: transformers.LlamaConfig) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("name", ["pickle", "", None, ["dummy"]])
def test_an_unknown_load_format_lists_the_known_ones(config: transformers.LlamaConfig, name: Any) -> None:
    with pytest.raises(CheckpointError, match="checkpoint-load-format"):
        load_original(config, None, torch.float32, name)


def test_advice_names_load_formats(config: transformers.LlamaConfig, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(CheckpointError, match=r"checkpoint-(config-alone|no-weights)"):
            load_original(config, folder, torch.float32, "safetensors")


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
def test_errors_of_transformers_become_one_sentence(
    model: transformers.LlamaForCausalLM,
    config: transformers.LlamaConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise error

    model.save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", stumble)
    with pytest.raises(CheckpointError, match="checkpoint-unloadable") as refused:
        load_original(config, tmp_path, torch.float32, "safetensors")
    assert type(error).__name__ in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is error
