"""Weights: from models and mappings, tied, split, folded, cast, missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import converted, decodes, seeded, tiny

from lamina.convert import ConversionError, convert


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


@pytest.mark.parametrize("family", ["Llama", "Gemma3Text"])
def test_a_checkpoint_is_enough(family: str) -> None:
    # No inv_freq, no embed_scale: tables that are in no checkpoint are made as the model makes them.
    model = seeded(tiny(family, head_dim=16))
    conversion = convert(model.config, torch.float32)
    decodes(model, conversion, conversion.bind(_tensors(model)))


@pytest.mark.parametrize("saved", ["model.embed_tokens.weight", "lm_head.weight"])
def test_either_name_of_a_tied_weight_is_enough(saved: str) -> None:
    model = seeded(tiny("Llama", tie_word_embeddings=True))
    tensors = _tensors(model)
    pair = {"model.embed_tokens.weight", "lm_head.weight"}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in pair - {saved}}
    conversion = convert(model)
    bound = conversion.bind(tensors)
    assert bound[0].weights[0].data_ptr() == bound[-1].weights[-1].data_ptr()
    decodes(model, conversion, bound)


def test_weights_are_not_copied() -> None:
    model = seeded(tiny("Phi3"))
    bound = convert(model).bind(model)
    fused = model.model.layers[0].self_attn.qkv_proj.weight
    inside = range(fused.data_ptr(), fused.data_ptr() + fused.nbytes)
    # Phi3's rows of q, k and v are adjacent, so even the split ones are views.
    assert sum(weight.data_ptr() in inside for weight in bound[0].weights) == 3
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for one in bound:
        assert all(w.untyped_storage().data_ptr() in own for w in one.weights if w.numel() > 16)
        assert not any(w.requires_grad for w in one.weights)


def test_weights_are_cast_to_the_conversions_type() -> None:
    bound = converted("Llama").bind(seeded(tiny("Llama")))
    assert {weight.dtype for weight in bound[1].weights} == {torch.bfloat16}


def test_bfloat16_decodes_as_the_model_does() -> None:
    # Attention over one token gives that token's v, so none is needed here.
    model = seeded(tiny("Llama", num_hidden_layers=1, num_key_value_heads=4)).bfloat16()
    conversion = convert(model)
    first, last = conversion.bind(model)
    tokens = torch.tensor([5, 17])
    _, state = first.query((tokens, torch.zeros(2, dtype=torch.int64)), None)
    _, value, state = first.keyvalue(state)
    logits = last.logits(first.rest(state), value)
    with torch.no_grad():
        expected = model(input_ids=tokens[:, None]).logits[:, -1]
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)


def test_wrong_weights_are_named() -> None:
    model = seeded(tiny("Llama"))
    conversion = converted("Llama", torch.float32)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = _tensors(model)
    with pytest.raises(ConversionError, match=f"(?s){name}.*convert-weight-missing"):
        conversion.bind({key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(ConversionError, match="convert-weight-shape"):
        conversion.bind({**tensors, name: torch.zeros(3, 3)})
    with pytest.raises(ConversionError, match="convert-weight-kind"):
        conversion.bind({**tensors, name: torch.zeros(96, 64, dtype=torch.int8)})
    with pytest.raises(ConversionError, match="convert-weight-kind"):
        conversion.bind({**tensors, name: torch.zeros(96, 64, device="meta")})


def test_slices_have_only_their_own_pieces() -> None:
    bound = converted("Llama", torch.float32).bind(seeded(tiny("Llama")))
    assert [one.pieces for one in bound] == [("query", "keyvalue", "rest")] * 2 + [("logits",)]
    with pytest.raises(AttributeError, match="slice 0 has no logits"):
        bound[0].logits((), None)
    with pytest.raises(AttributeError, match="slice 2 has no query"):
        bound[2].query((), None)


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ConversionError, match="convert-rope-mode"):
        convert(tiny("Llama"), rope="both")
    with pytest.raises(ConversionError, match="convert-absorb-unknown"):
        convert(tiny("Llama"), absorb="nobody")  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match="convert-backend-unknown"):
        converted("Llama").bind({}, backend="jit")


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:77"])
def test_devices_that_cannot_be_used(device: str) -> None:
    with pytest.raises(ConversionError, match=rf"(?s){device}.*convert-(meta-)?device"):
        converted("Llama", torch.float32).bind({}, device=device)
