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
from tiny_models import converted, tiny

from lamina.convert import ConversionError, convert
from lamina.convert.source import open_source
from lamina.convert.trace import Mask, TracedCache, _attend, _mask, tracing

_SMALL = {"hidden_size": 64, "vocab_size": 99, "num_hidden_layers": 2, "num_attention_heads": 4}


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


# The others are refused by the same checks.
@pytest.mark.long(but=["Llama-changes1-*", "Phi3-*", "DiffLlama-*", "Gemma3nText-*"])
@pytest.mark.parametrize(
    ("family", "changes", "code"),
    [
        ("Llama", _rope("dynamic"), "convert-rope-depends-on-batch"),
        ("Llama", _rope("mrope"), "convert-rope-unknown"),
        ("Phi3", _rope("longrope", **_LONG), "convert-rope-depends-on-batch"),
        ("DiffLlama", {}, "convert-changes-stored-keys"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, "convert-not-causal"),
        ("Gemma3nText", {}, "convert-shared-keys"),
        ("MiniMax", {"num_local_experts": 4, "block_size": 8}, "convert-keeps-other-state"),
        ("FalconH1", {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}, "convert-buffer-unknown"),
    ],
)
def test_models_that_do_more_than_attend(family: str, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConversionError, match=code) as refused:
        convert(tiny(family, **changes))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{family}Config: ")


def _twice(k: torch.Tensor, v: torch.Tensor) -> Any:
    return 2 * k, v


def _rotated_values(k: torch.Tensor, v: torch.Tensor) -> Any:
    return k, k[..., : v.shape[-1]]


def _rotated_first(k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch.cat([k[..., 8:12], k[..., :8], k[..., 12:]], dim=-1), v


@pytest.mark.long(but=["_rotated_first"])
@pytest.mark.parametrize("change", [_twice, _rotated_values, _rotated_first])
def test_latents_expanded_by_more_than_a_product(change: Callable[..., Any]) -> None:
    """Keys that are scaled, values with rotated numbers in them, a rotated part that lies in two pieces."""

    class Attention(transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention):  # type: ignore[misc, name-defined]
        def expand_kv(self, *stored: torch.Tensor) -> Any:
            return change(*super().expand_kv(*stored))

    class Custom(transformers.DeepseekV3ForCausalLM):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for number, layer in enumerate(self.model.layers):
                layer.self_attn = Attention(config, number)

    model = Custom._from_config(tiny("DeepseekV3", **{**_MLA, "v_head_dim": 16}), dtype=torch.float32)
    with pytest.raises(ConversionError, match="convert-changes-stored-keys"):
        convert(model)


_OLD = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}


@pytest.mark.parametrize(
    ("family", "sizes", "code"),
    [
        ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}, "convert-alibi"),
        ("Falcon", {**_SMALL, "alibi": True}, "convert-alibi"),
        ("Falcon", _SMALL, "convert-attention-hidden"),
        ("GPTJ", {**_OLD, "rotary_dim": 8}, "convert-attention-hidden"),
        ("Mamba", _SMALL, "convert-config-incomplete"),
        ("OpenAIGPT", _OLD, "convert-attention-missing"),
        ("T5", {"d_model": 64}, "convert-encoder-decoder"),
        ("GPT2", {**_OLD, "add_cross_attention": True}, "convert-encoder-decoder"),
        ("Bert", _SMALL, "convert-mask-pattern"),
        ("Gemma3", {}, "convert-modalities"),
        ("Roberta", {**_SMALL, "is_decoder": True}, "convert-shifted-positions"),
        ("Camembert", _SMALL, "convert-shifted-positions"),
        ("Llama", {"num_hidden_layers": 0}, "convert-no-layers"),
        ("Llama", {"hidden_act": "nope"}, "convert-activation-unknown"),
        ("Llama", {"dtype": "float64"}, "convert-dtype"),
    ],
)
def test_models_of_another_kind(family: str, sizes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConversionError, match=code):
        convert(getattr(transformers, f"{family}Config")(**sizes))


def test_other_sources_than_models_are_refused() -> None:
    with pytest.raises(ConversionError, match="convert-source-kind"):
        convert(3)
    with pytest.raises(ConversionError, match="convert-no-model-type"):
        convert({"hidden_size": 64})


def test_quantised_configs(tmp_path: Path) -> None:
    data = {**tiny("Llama").to_dict(), "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConversionError, match="convert-quantised"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "convert-config-not-json"),
        ("[" * 100_000, "convert-config-not-json"),
        ("[1]", "convert-config-not-object"),
        ("{}", "convert-no-model-type"),
        ('{"model_type": "mistral9"}', "convert-model-type-unknown"),
        ('{"model_type": "llama", "hidden_size": "big"}', "convert-config-rejected"),
        ('{"model_type": "llama", "hidden_size": 63, "num_attention_heads": 4}', "convert-config-rejected"),
        ('{"model_type": "llama", "dtype": "float8_e4m3fn", "num_hidden_layers": 1}', "convert-dtype"),
    ],
)
def test_files_that_are_no_config(text: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConversionError, match=code) as refused:
        convert(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_does_not_choose_what_computes_its_layers(tmp_path: Path) -> None:
    chosen = {"attn_implementation": "some/kernel", "experts_implementation": "some/kernel"}
    (tmp_path / "config.json").write_text(json.dumps({**tiny("Llama").to_dict(), **chosen}))
    config = open_source(tmp_path, None).config
    assert config._attn_implementation is None
    assert config._experts_implementation is None


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConversionError, match=r"(?s)config\.json.*convert-unreadable"):
        convert(tmp_path)
    with pytest.raises(ConversionError, match=r"(?s)nowhere.*convert-unreadable"):
        convert(str(tmp_path / "nowhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConversionError, match=f"(?s){tmp_path}/nowhere.*convert-unreadable"):
        convert("~/nowhere")


def test_a_folder_and_a_file_are_the_same(tmp_path: Path) -> None:
    tiny("Llama", dtype="float16").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 77]}')
    by_folder, by_file = convert(tmp_path), convert(str(tmp_path / "config.json"))
    assert by_folder.eos_token_ids == (2, 77)
    assert by_folder.dtype == torch.float16
    assert [kind.source for kind in by_folder.classes] == [kind.source for kind in by_file.classes]


@pytest.mark.long(but=["Model"])
@pytest.mark.parametrize("name", ["ForSequenceClassification", "ForTokenClassification", "Model"])
def test_models_with_another_head(name: str) -> None:
    with pytest.raises(ConversionError, match="convert-no-logits"):
        convert(getattr(transformers, f"Llama{name}")(tiny("Llama")))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int8, "float8", "nonsense"])
def test_types_that_slices_do_not_compute_in(dtype: Any) -> None:
    with pytest.raises(ConversionError, match="convert-dtype"):
        convert(tiny("Llama"), dtype)


def test_types_by_their_names() -> None:
    for name in ("bfloat16", "torch.float16"):
        expected = getattr(torch, name.removeprefix("torch."))
        assert converted("Llama", name, num_hidden_layers=1).dtype == expected


def test_outputs_besides_logits_are_not_requested() -> None:
    plain = convert(tiny("Mixtral", num_local_experts=4))
    tuples = tiny("Mixtral", num_local_experts=4, output_router_logits=True, return_dict=False)
    assert [kind.source for kind in convert(tuples).classes] == [kind.source for kind in plain.classes]
    assert tuples.output_router_logits  # the caller's own is as it was


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
    ("changes", "code"),
    [
        ({"s_aux": torch.zeros(3)}, "convert-sinks"),
        ({"head_mask": torch.zeros(4), "bias": 1}, "convert-attention-arguments"),
        ({"dropout": 0.1}, "convert-drops-out"),
        ({"scaling": None}, "convert-no-scale"),
        ({"is_causal": False}, "convert-not-causal"),
        ({"module_causal": False}, "convert-not-causal"),
        ({"attention_mask": None}, "convert-no-mask"),
        ({"attention_mask": Mask(None)}, "convert-mask-pattern"),
        ({"sliding_window": 4}, "convert-window-contradicts"),
        ({"value": torch.zeros(2, 2, 1, 4, device="meta")}, "convert-head-sizes"),
        ({"key": torch.zeros(2, 2, 3, 8, device="meta")}, "convert-not-one-token"),
        (
            {"key": torch.zeros(2, 3, 1, 8, device="meta"), "value": torch.zeros(2, 3, 1, 8, device="meta")},
            "convert-kv-heads",
        ),
    ],
)
def test_other_attention_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConversionError, match=code):
        _attention(**changes)


def test_caches_hold_each_layer_once_and_in_order() -> None:
    cache = TracedCache()
    nothing = torch.zeros(0)
    cache.update(nothing, nothing, 0)
    with pytest.raises(ConversionError, match="convert-layer-order"):
        cache.update(nothing, nothing, 0)
    with pytest.raises(ConversionError, match=r"(?s)conv_states.*convert-keeps-other-state"):
        _ = cache.conv_states


@pytest.mark.parametrize(
    ("sees", "window", "chunk"),
    [
        (lambda b, h, q, k: k <= q, 0, 0),
        (lambda b, h, q, k: (k <= q) & (k > q - 9), 9, 0),
        (lambda b, h, q, k: (k <= q) & (k > q - 1), 1, 0),
        (lambda b, h, q, k: q >= 0, None, 0),  # bidirectional
        (lambda b, h, q, k: (k <= q) & (k // 16 == q // 16), 0, 16),
        (lambda b, h, q, k: (k <= q) & (k // 16 == (q - torch.zeros(2, device="meta")[b]) // 16), 0, 16),
        (lambda b, h, q, k: (k <= q) & ((k + 4) // 16 == (q + 4) // 16), None, 0),
        (lambda b, h, q, k: (k <= q) & ((k > q - 9) | (k == 0)), None, 0),  # a sink
        (lambda b, h, q, k: k < q, None, 0),
        (lambda b, h, q, k: (k <= q + 1) & (k > q - 9), None, 0),
    ],
)
def test_masks_are_read_or_noted_as_unreadable(
    sees: Callable[..., Any], window: int | None, chunk: int
) -> None:
    assert _mask(mask_function=sees, attention_mask=None) == Mask(window, chunk)


def test_a_mask_that_differs_between_requests_is_refused() -> None:
    with pytest.raises(ConversionError, match="convert-mask-pattern"):
        _mask(mask_function=lambda b, h, q, k: torch.ones(2, 9)[b, k] > 0, attention_mask=None)


def test_absorb_needs_latent_kv() -> None:
    with pytest.raises(ConversionError, match="convert-absorb-unused"):
        convert(tiny("Llama"), absorb="attention")
