"""Prompts through the original model: the same K and V, whatever its owner does with it meanwhile."""

from __future__ import annotations

import pytest
import torch
import transformers

from lamina.model import Prefill

PROMPT = list(range(3, 40))


@pytest.fixture
def model() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64)
    return transformers.GPT2LMHeadModel(config).eval()


def prompt(prefill: Prefill) -> list[torch.Tensor]:
    return [part for _, keys, values in prefill.layers(PROMPT) for part in (keys, values)]


@pytest.mark.parametrize("place", ["", "transformer.h.0", "transformer.h.0.mlp.dropout"])
def test_training_mode_changes_nothing_and_is_left_as_it_is(
    model: transformers.GPT2LMHeadModel, place: str
) -> None:
    prefill = Prefill(model)
    expected = prompt(prefill)
    model.get_submodule(place).train()
    modes = [module.training for module in model.modules()]
    assert any(modes)
    for found, wanted in zip(prompt(prefill), expected, strict=True):
        assert torch.equal(found, wanted)
    assert [module.training for module in model.modules()] == modes


def test_the_mode_is_put_back_after_an_error_too(model: transformers.GPT2LMHeadModel) -> None:
    model.train()
    with pytest.raises(IndexError):
        list(Prefill(model).layers([64]))
    assert all(module.training for module in model.modules())


def test_a_prompt_of_a_model_being_trained_carries_no_graph(model: transformers.GPT2LMHeadModel) -> None:
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(part.requires_grad for part in prompt(Prefill(model)))
    assert all(weight.requires_grad for weight in model.parameters())
