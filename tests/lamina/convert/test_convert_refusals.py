"""What cannot be converted is refused in one sentence, never converted wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from lamina.convert import ConversionError, convert
from lamina.convert.attention import Mask, TracedCache, _attend, _mask, tracing

_SMALL = {"vocab_size": 99, "num_hidden_layers": 2, "num_attention_heads": 4}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, **more}}


_LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}
_MLA = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("Llama", _rope("dynamic"), "'dynamic' depends on the longest request of a batch"),
        ("Llama", _rope("mrope"), "'mrope' is not known here; types that work: default"),
        ("Phi3", _rope("longrope", **_LONG), "'longrope' depends on the longest request of a batch"),
        ("GptOss", {"num_local_experts": 4, "head_dim": 16}, "uses s_aux"),
        ("DeepseekV3", _MLA, "changes keys or values after they are stored"),
        ("DiffLlama", {}, "changes keys or values after they are stored"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, "not causal"),
        ("Gemma3nText", {}, "KV sharing"),
        ("FalconH1", {}, "keeps more between tokens than keys and values"),
    ],
)
def test_models_that_do_more_than_attend(
    family: str, changes: dict[str, Any], reason: str, tiny: Callable[..., Any]
) -> None:
    with pytest.raises(ConversionError, match=reason) as refused:
        convert(tiny(family, **changes))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{family}Config: ")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=99), "ALiBi"),
        (lambda: transformers.FalconConfig(hidden_size=64, **_SMALL, alibi=True), "ALiBi"),
        (lambda: transformers.FalconConfig(hidden_size=64, **_SMALL), "attention interface"),
        (
            lambda: transformers.GPTJConfig(n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
            "attention interface",
        ),
        (lambda: transformers.MambaConfig(hidden_size=64, **_SMALL), "does not say max_position_embeddings"),
        (
            lambda: transformers.OpenAIGPTConfig(n_embd=64, n_layer=2, n_head=4, vocab_size=99),
            "0 attention operators were found in 2 layers",
        ),
        (lambda: transformers.T5Config(d_model=64), "encoder-decoder"),
        (lambda: transformers.GPT2Config(n_embd=64, n_layer=2, add_cross_attention=True), "encoder-decoder"),
        (lambda: transformers.BertConfig(hidden_size=64, **_SMALL), "sees something else"),
        (transformers.Gemma3Config, "several modalities"),
        (lambda: transformers.RobertaConfig(hidden_size=64, **_SMALL, is_decoder=True), "padding token's"),
        (lambda: transformers.CamembertConfig(hidden_size=64, **_SMALL), "camembert counts positions from"),
        (lambda: transformers.LlamaConfig(num_hidden_layers=0), "0 layers leave nothing to split"),
        (lambda: transformers.LlamaConfig(hidden_act="nope"), r"no activation 'nope' \(hidden_act\)"),
        (lambda: transformers.LlamaConfig(dtype="float64"), "dtype torch.float64 is not float32"),
        (lambda: 3, "cannot convert an int: give"),
    ],
)
def test_models_of_another_kind(config: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert(config())


def test_quantised_configs(tiny: Callable[..., Any], tmp_path: Path) -> None:
    data = {**tiny("Llama").to_dict(), "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConversionError, match=r"config\.json: quantised weights"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "is a JSON object; this is a list"),
        ("{}", "there is no model_type"),
        ('{"model_type": "mistral9"}', "does not know model_type 'mistral9'"),
        ('{"model_type": "llama", "hidden_size": "big"}', "transformers rejects this config"),
        (
            '{"model_type": "llama", "hidden_size": 63, "num_attention_heads": 4}',
            "not a multiple",
        ),
        (
            '{"model_type": "llama", "dtype": "float8_e4m3fn", "num_hidden_layers": 1}',
            "not float32, float16 or",
        ),
    ],
)
def test_files_that_are_no_config(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConversionError, match=reason) as refused:
        convert(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"cannot read .*config\.json: No such file"):
        convert(tmp_path)
    with pytest.raises(ConversionError, match=r"cannot read .*nowhere"):
        convert(str(tmp_path / "nowhere"))


def test_a_folder_and_a_file_are_the_same(tiny: Callable[..., Any], tmp_path: Path) -> None:
    tiny("Llama", dtype="float16").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 77]}')
    by_folder, by_file = convert(tmp_path), convert(str(tmp_path / "config.json"))
    assert by_folder.eos_token_ids == (2, 77)
    assert by_folder.dtype == torch.float16
    assert [kind.source for kind in by_folder.classes] == [kind.source for kind in by_file.classes]


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConversionError, match=f"cannot read {tmp_path}/nowhere"):
        convert("~/nowhere")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LlamaForSequenceClassification", "not one logit for each of 99 tokens; give the causal language"),
        ("LlamaForTokenClassification", r"\['B', 2\], not one logit for each of 99 tokens"),
        ("LlamaModel", "gives no logits; give the causal language model"),
    ],
)
def test_models_with_another_head(name: str, reason: str, tiny: Callable[..., Any]) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert(getattr(transformers, name)(tiny("Llama")))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int8, "float8", "nonsense"])
def test_types_that_slices_do_not_compute_in(dtype: Any, tiny: Callable[..., Any]) -> None:
    with pytest.raises(ConversionError, match="is not float32, float16 or bfloat16"):
        convert(tiny("Llama"), dtype)


def test_types_by_their_names(tiny: Callable[..., Any]) -> None:
    for name in ("bfloat16", "torch.float16", "float32"):
        assert convert(tiny("Llama", num_hidden_layers=1), name).dtype == getattr(
            torch, name[-8:].lstrip(".")
        )


def test_outputs_besides_logits_are_not_asked_for(tiny: Callable[..., Any]) -> None:
    plain = convert(tiny("Mixtral", num_local_experts=4))
    asking = tiny("Mixtral", num_local_experts=4, output_router_logits=True, return_dict=False)
    assert [kind.source for kind in convert(asking).classes] == [kind.source for kind in plain.classes]
    assert asking.output_router_logits  # the caller's own is as it was


def test_a_model_that_was_changed_after_loading(tiny: Callable[..., Any], seeded: Callable[..., Any]) -> None:
    model = seeded(tiny("Llama"))
    model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    with pytest.raises(ConversionError, match=r"layers\.0\.mlp\.up_proj.*merge or remove"):
        convert(model)


# The stand-ins one by one: each thing that real models might ask of them some day.


def _attention(**changes: Any) -> Any:
    cache = TracedCache()
    q, k, v = (torch.zeros(2, heads, 1, 8, device="meta") for heads in (4, 2, 2))
    k, v = changes.pop("key", k), changes.pop("value", v)
    cache.update(k, v, 0)
    module = SimpleNamespace(layer_idx=0, is_causal=changes.pop("module_causal", True))
    arguments = {"attention_mask": Mask(0), "scaling": 0.5, **changes}
    active = tracing.set(cache)
    try:
        return _attend(module, changes.pop("query", q), k, v, arguments.pop("attention_mask"), **arguments)
    finally:
        tracing.reset(active)


def test_plain_attention_is_accepted() -> None:
    attended, _ = _attention(position_ids=torch.zeros(2), use_cache=False, head_mask=None)
    assert attended.shape == (2, 1, 4, 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"s_aux": torch.zeros(4)}, "uses s_aux"),
        ({"head_mask": torch.zeros(4), "bias": 1}, "uses bias, head_mask"),
        ({"dropout": 0.1}, "drops out"),
        ({"scaling": None}, "does not say how it scales"),
        ({"is_causal": False}, "not causal"),
        ({"module_causal": False}, "not causal"),
        ({"attention_mask": None}, "does not say which tokens"),
        ({"attention_mask": Mask(None)}, "sees something else"),
        ({"sliding_window": 4}, "names a window of 4 tokens but its mask has 0"),
        ({"value": torch.zeros(2, 2, 1, 4, device="meta")}, "one size"),
        ({"key": torch.zeros(2, 2, 3, 8, device="meta")}, "one token a request"),
        (
            {"key": torch.zeros(2, 3, 1, 8, device="meta"), "value": torch.zeros(2, 3, 1, 8, device="meta")},
            "not a multiple of its 3 KV heads",
        ),
    ],
)
def test_other_attention_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        _attention(**changes)


def test_caches_hold_each_layer_once_and_in_order() -> None:
    cache = TracedCache()
    nothing = torch.zeros(0)
    cache.update(nothing, nothing, 0)
    with pytest.raises(ConversionError, match="layer 0 stores its keys where layer 1 should"):
        cache.update(nothing, nothing, 0)
    with pytest.raises(ConversionError, match="asks the cache for 'conv_states'"):
        _ = cache.conv_states


@pytest.mark.parametrize(
    ("sees", "window"),
    [
        (lambda b, h, q, k: k <= q, 0),
        (lambda b, h, q, k: (k <= q) & (k > q - 9), 9),
        (lambda b, h, q, k: (k <= q) & (k > q - 1), 1),
        (lambda b, h, q, k: q >= 0, None),  # bidirectional
        (lambda b, h, q, k: (k <= q) & (k // 16 == q // 16), None),  # chunks
        (lambda b, h, q, k: (k <= q) & ((k > q - 9) | (k == 0)), None),  # a sink
        (lambda b, h, q, k: k < q, None),
        (lambda b, h, q, k: (k <= q + 1) & (k > q - 9), None),
    ],
)
def test_masks_are_read_or_noted_as_unreadable(sees: Callable[..., Any], window: int | None) -> None:
    assert _mask(mask_function=sees, attention_mask=None).window == window
