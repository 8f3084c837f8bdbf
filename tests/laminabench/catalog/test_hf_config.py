"""A config.json of each family gives the catalogue's model; what is not understood is refused by its key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from laminabench.catalog.entries import packaged
from laminabench.catalog.families import load_models, released_models
from laminabench.catalog.find_model import from_config_json, model, modelled, to_hf_config
from laminabench.catalog.hf_config import write_config
from laminabench.catalog.model_parts import Window
from laminabench.catalog.models import BLOCKS
from laminabench.util.errors import UserError

FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def _sizes(family: str, layers: int, hidden: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def _routed(kv_heads: int, top_k: int, **more: Any) -> dict[str, Any]:
    return {"num_key_value_heads": kv_heads, "num_experts_per_tok": top_k, **more}


def _qwen3(layers: int, hidden: int, heads: int, dense: int, width: int) -> dict[str, Any]:
    more = {"num_experts": 128, "moe_intermediate_size": width, "intermediate_size": dense, "head_dim": 128}
    off = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": layers}
    steps = {"decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False}
    return _sizes("qwen3_moe", layers, hidden, heads, 151936, **_routed(4, 8, **more), **off, **steps)


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return _sizes(
        *("gpt_oss", layers, 2880, 64, 201088),
        **_routed(8, 4, num_local_experts=experts, intermediate_size=2880, head_dim=64, attention_bias=True),
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        sliding_window=128,
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": left},
    )


def _llama4(experts: int, step: int) -> dict[str, Any]:
    more = {"intermediate_size": 8192, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
    more |= {"num_local_experts": experts, "interleave_moe_layer_step": step, "head_dim": 128}
    text = _sizes("llama4_text", 48, 5120, 40, 202048, **_routed(8, 1, **more))
    del text["torch_dtype"]
    return {"model_type": "llama4", "torch_dtype": "bfloat16", "text_config": text}


def _deepseek(family: str, heads: int, vocab: int, experts: int, first: int, **more: Any) -> dict[str, Any]:
    ranks = {"q_lora_rank": 1536, "kv_lora_rank": 512}
    dims = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "intermediate_size": 18432}
    mixed = {"n_routed_experts": experts, "n_shared_experts": 1, "moe_intermediate_size": 2048}
    mixed |= {"first_k_dense_replace": first, "moe_layer_freq": 1, "num_nextn_predict_layers": 1}
    groups = {"n_group": 1, "topk_group": 1, "quantization_config": FP8_BLOCKS}
    sizes = {**ranks, **dims, **mixed, **groups, **more}
    return _sizes(family, 61, 7168, heads, vocab, **_routed(heads, 8, **sizes))


INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"},
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral-8x7b": _sizes(
        *("mixtral", 32, 4096, 32, 32000),
        **_routed(8, 2, num_local_experts=8, intermediate_size=14336, sliding_window=None),
    ),
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 6144, 768),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 12288, 1536)
    | {
        "quantization_config": {
            **FP8_BLOCKS,
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
        }
    },
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "llama4-scout": _llama4(16, 1),
    "llama4-maverick": _llama4(128, 2),
    "glm-4.5-air": _sizes(
        *("glm4_moe", 46, 4096, 96, 151552),
        **_routed(8, 8, n_routed_experts=128, n_shared_experts=1, moe_intermediate_size=1408),
        intermediate_size=10944,
        first_k_dense_replace=1,
        head_dim=128,
        n_group=1,
        topk_group=1,
        attention_bias=True,
        use_qk_norm=False,
    ),
    "minimax-m2.5": _sizes(
        *("minimax_m2", 62, 3072, 48, 200064),
        **_routed(8, 8, num_local_experts=256, intermediate_size=1536, head_dim=128, use_qk_norm=True),
        shared_intermediate_size=0,
        attn_type_list=[1] * 62,
        quantization_config={**FP8_BLOCKS, "modules_to_not_convert": ["gate", "lm_head"]},
    ),
    "deepseek-v3": _deepseek("deepseek_v3", 128, 129280, 256, 3, n_group=8, topk_group=4),
    "kimi-k2": _deepseek("kimi_k2", 64, 163840, 384, 1),
    "kimi-k2.5": {
        "model_type": "kimi_k25",
        "text_config": _deepseek("kimi_k2", 64, 163840, 384, 1, quantization_config=INT4),
    },
}


def _read(tmp_path, config: dict[str, Any]):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return from_config_json(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_each_family_is_the_catalogue_s_model(tmp_path, name):
    expected = model(name)
    assert replace(_read(tmp_path, CONFIGS[name]), name=name, source=expected.source) == expected


def test_every_mixture_of_the_catalogue_is_read():
    released = [shape for shape in load_models().values() if not shape.source.startswith("made up")]
    assert set(CONFIGS) == {shape.name for shape in released if shape.experts}


@pytest.mark.parametrize("name", released_models())
def test_what_is_written_is_read_again_but_for_formats_of_weights(tmp_path, name):
    expected = model(name)
    if expected.dtype in BLOCKS:
        expected = replace(expected, dtype="bf16")
    if expected.experts:
        expected = replace(expected, experts=replace(expected.experts, dtype=""))
    read = _read(tmp_path, to_hf_config(name))
    assert replace(read, name=name, source=expected.source) == expected


@pytest.mark.long  # transformers is imported, and its models are built without memory
def test_transformers_counts_as_many_parameters():
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    for name in CONFIGS:
        shape = replace(model(name), layers=4, window=None)
        config = write_config(shape, packaged("models.toml")[name]["family"])
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        counted = sum(each.numel() for each in built.parameters())
        assert shape.parameters == counted


LLAMA = _sizes("llama", 8, 256, 8, 1024, intermediate_size=704, num_key_value_heads=2)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, Window(4096, 8)),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 6,
            },
            Window(512, 2),
        ),
        ({"layer_types": ["full_attention"] * 8}, None),
        (
            {"layer_types": ["chunked_attention", "full_attention"] * 4, "attention_chunk_size": 256},
            Window(256, 4, chunked=True),
        ),
    ],
)
def test_windows_of_dense_families(tmp_path, changes, window):
    assert _read(tmp_path, {**LLAMA, **changes}).window == window


def _group(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("quantization", "formats"),
    [
        (FP8_BLOCKS, ("fp8_block", "bf16")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", "bf16")),
        (_group(num_bits=8, type="float", strategy="channel"), ("fp8", "bf16")),
        (_group(num_bits=4, type="float", group_size=16, strategy="tensor_group"), ("nvfp4", "bf16")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, ("nvfp4", "fp8")),
        ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, ("fp8", "fp8")),
    ],
)
def test_formats_of_weights_and_kv(tmp_path, quantization, formats):
    read = _read(tmp_path, {**LLAMA, "quantization_config": quantization})
    assert (read.dtype, read.kv_dtype) == formats


def test_what_modelopt_quantized_may_be_said_beside_the_config(tmp_path):
    alongside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(alongside))
    assert _read(tmp_path, LLAMA).dtype == "fp8"


SOME = ["model.layers.0.self_attn.q_proj"]


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("llama", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quant_method 'awq'"),
        (
            "llama",
            {"quantization_config": {**FP8_BLOCKS, "weight_block_size": [64, 64]}},
            "weight_block_size",
        ),
        ("llama", {"quantization_config": {**FP8_BLOCKS, "modules_to_not_convert": SOME}}, "in part"),
        ("llama", {"quantization_config": {**FP8_BLOCKS, "ignore": ["*self_attn*"]}}, "alone"),
        ("llama", {"quantization_config": {"quant_algo": "MIXED_PRECISION"}}, "quant_algo"),
        ("llama", {"quantization_config": {"quant_algo": "FP8", "kv_cache_scheme": "INT4"}}, "KV as 'INT4'"),
        ("llama", {"quantization_config": _group(num_bits=4, type="int", group_size=128)}, "groups of 128"),
        ("llama", {"layer_types": ["linear_attention"] * 8}, "layer_types"),
        ("llama", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"layer_types": ["chunked_attention", "sliding_attention"] * 4}, "layer_types"),
        ("llama", {"model_type": "mistral", "sliding_window": 512}, "sliding_window"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [3, 10]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": "0"}, "mlp_only_layers"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("minimax-m2.5", {"shared_intermediate_size": 1536}, "shared_intermediate_size"),
        ("minimax-m2.5", {"attn_type_list": [0, 1] * 31}, "attn_type_list"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(tmp_path, name, changes, key):
    with pytest.raises(UserError, match="model-config-unsupported") as refused:
        _read(tmp_path, {**(LLAMA if name == "llama" else CONFIGS[name]), **changes})
    assert key in str(refused.value)


def test_layers_without_experts_are_first_or_one_in_so_many(tmp_path):
    some = {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [0, 1, 2]}
    assert _read(tmp_path, some).experts.dense_layers == 3
    assert _read(tmp_path, {**some, "mlp_only_layers": [], "decoder_sparse_step": 2}).expert_layers == 24


def test_another_type_is_for_experts_too_and_for_kv_unless_it_has_blocks():
    result = modelled("gpt-oss-120b@bf16")
    assert (result.dtype, result.expert_dtype, result.kv_dtype) == ("bf16", "bf16", "bf16")
    result = modelled("mixtral-8x7b@fp8")
    assert (result.dtype, result.expert_dtype, result.kv_dtype) == ("fp8", "fp8", "fp8")
    result = modelled("qwen3-235b-a22b@nvfp4")
    assert (result.dtype, result.expert_dtype, result.kv_dtype) == ("nvfp4", "nvfp4", "bf16")
