"""An architecture that is known is not traced again, and nothing else is taken for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import custom, decodes, seeded, tiny

from lamina.convert import ConversionError, convert, cut
from lamina.convert import conversion as conversion_module

CHANGES = {"num_hidden_layers": 1, "intermediate_size": 104}


pytestmark = pytest.mark.usefixtures("nothing_known")


def test_the_same_architecture_is_known(traced: list[Any]) -> None:
    """Whatever the weights: both models decode as they did."""
    for seed in (0, 1):
        model = seeded(tiny("Llama", **CHANGES), seed)
        conversion = convert(model)
        decodes(model, conversion)
        assert conversion.config is not model.config
    assert len(traced) == 1


def test_different_options_are_converted_separately(traced: list[Any]) -> None:
    config = tiny("Llama", **CHANGES)
    scaled = tiny("Llama", attention_bias=True, **CHANGES)
    results = [
        convert(config, torch.float32),
        convert(config, torch.bfloat16),
        convert(config, torch.float32, rope="recompute"),
        convert(scaled, torch.float32),
    ]
    assert len(traced) == len(results)
    again = convert(scaled, torch.float32)
    assert len(traced) == len(results)
    assert again.slices is results[-1].slices


def test_the_other_rope_mode_cuts_the_same_graph(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes to what it comes to alone, in either order."""

    def sources(rope: str) -> list[str]:
        return [kind.source for kind in convert(tiny("Llama", **CHANGES), rope=rope).classes]

    modes = ("carry", "recompute")
    alone = []
    for rope in modes:
        cut._graph.clear()
        alone.append(sources(rope))
    assert len(traced) == 2
    assert alone[0] != alone[1]
    for order in (modes, modes[::-1]):
        monkeypatch.setattr(conversion_module, "_memory_cache", {})
        assert {rope: sources(rope) for rope in order} == dict(zip(modes, alone, strict=True))
    assert len(traced) == 2


def test_a_class_of_ones_own_is_not_taken_for_another(traced: list[Any]) -> None:
    """Their configs are the same."""
    first, second = (custom(compute) for compute in (lambda up, x: up * x, lambda up, x: up + x))
    assert first.config.to_json_string() == second.config.to_json_string()
    sources = [[kind.source for kind in convert(model).classes] for model in (first, second)]
    assert len(traced) == 2
    assert sources[0] != sources[1]


def test_a_model_that_was_changed_is_refused_though_its_architecture_is_known() -> None:
    model = seeded(tiny("Llama", **CHANGES))
    convert(model)
    with torch.no_grad():
        model.get_buffer("model.rotary_emb.inv_freq").mul_(2)
    with pytest.raises(ConversionError, match=r"(?s)inv_freq.*convert-changed-buffer"):
        convert(model)
    model = seeded(tiny("Llama", **CHANGES))
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    with pytest.raises(ConversionError, match="convert-changed-module"):
        convert(model)


def test_least_recently_used_conversions_are_evicted(
    traced: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion_module, "_MOST_CACHED", 2)
    first, second, third = (tiny("Llama", num_hidden_layers=1, vocab_size=50 + i) for i in range(3))
    for config in (first, second, first, third):
        convert(config)
    assert len(traced) == 3
    convert(first)
    assert len(traced) == 3
    convert(second)
    assert len(traced) == 4
