"""Every supported family decodes in slices as it does whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Decoder, decodes, seeded, tiny

from lamina.convert import ConversionError, convert

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_LAYERS = ["sliding_attention", "full_attention"]
_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_GLM_MOE = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4}),
    "llama-tied-bias": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": _YARN}),
    "llama-linear": ("Llama", {"rope_parameters": _LINEAR}),
    "opt": ("OPT", {"ffn_dim": 96}),
    "opt-350m": ("OPT", {"ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 5, "head_dim": 16}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma": ("Gemma", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "layer_types": _LAYERS,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 24,
        },
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 4, "layer_types": _LAYERS}),
    "phi3": ("Phi3", {}),
    "phi3-window": ("Phi3", {"sliding_window": 6, "num_key_value_heads": 4}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "gpt2": ("GPT2", {}),
    "gpt2-scaled": ("GPT2", {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "cohere-qk-norm": ("Cohere", {"use_qk_norm": True, "tie_word_embeddings": False}),
    "stablelm": ("StableLm", {}),
    "stablelm-parallel": (
        "StableLm",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2-moe": ("Qwen2Moe", {**_MOE, "shared_expert_intermediate_size": 48}),
    "qwen3-moe": ("Qwen3Moe", {**_MOE, "head_dim": 16}),
    "olmoe": ("Olmoe", {**_MOE, "intermediate_size": 32}),
    # A dense layer, then groups of experts beside a shared one.
    "glm4-moe": ("Glm4Moe", {**_GLM_MOE, "use_qk_norm": True, "n_group": 2, "topk_group": 1}),
    "deepseek-v2": ("DeepseekV2", {**_LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": ("DeepseekV2", {**_LATENT, "topk_method": "greedy", "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", {**_LATENT, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0}}),
    "glm4-moe-lite": ("Glm4MoeLite", _LATENT),
    "minicpm3": ("MiniCPM3", _LATENT),
    "youtu": ("Youtu", _LATENT),
    "minimax-m2": (
        "MiniMaxM2",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "intermediate_size": 32},
    ),
    # Chunks of six tokens but in the last layer, which has no RoPE and scales by position.
    "llama4": (
        "Llama4Text",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 6,
            "attn_temperature_tuning": True,
            "floor_scale": 4,
            "attn_scale": 0.5,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "rope_parameters": _YARN,
        },
    ),
}


# Tables differ by family; these have none, or differ from another model only in what surrounds them.
_ONLY_CARRIED = {
    *("opt", "opt-350m", "gpt2", "gpt2-scaled", "llama-mha", "llama-tied-bias", "llama-linear"),
    *("phi3-window", "gpt-neox-serial", "cohere-qk-norm", "stablelm-parallel"),
    *("deepseek-v2-lite", "glm4-moe-lite", "minicpm3", "youtu"),
}
# One after the other: their graph is traced once.
_CASES = [
    (name, rope) for name in MODELS for rope in ("carry", "recompute")[: 1 if name in _ONLY_CARRIED else 2]
]


# Others are decoded by the short tests of shards, experts and engines, with every operator that they have.
@pytest.mark.long(
    but=[
        *(
            "llama-recompute",
            "llama-tied-*",
            "gemma2-carry",
            "gpt-oss-carry",
            "deepseek-v3-carry",
            "gpt2-scaled-carry",
        ),
    ]
)
@pytest.mark.parametrize(("name", "rope"), _CASES)
def test_slices_decode_as_the_model(name: str, rope: str) -> None:
    family, changes = MODELS[name]
    model = seeded(tiny(family, **changes))
    conversion = convert(model, rope=rope)
    decodes(model, conversion)


_MAMBA = {"mamba_d_state": 8, "mamba_d_head": 16, "mamba_n_heads": 8, "mamba_n_groups": 1}
_HYBRID = {"num_hidden_layers": 4, "shared_intermediate_size": 96, **_MAMBA, "mamba_chunk_size": 16}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4}
# Layers that keep state between tokens; of which slice the model's states then are.
RECURRENT: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "jamba": ("Jamba", {**_JAMBA, "num_experts": 4, "num_hidden_layers": 3}, [2, 2]),
    "qwen3-next": (
        "Qwen3Next",
        {**_MOE, **_DELTA, "head_dim": 16, "shared_expert_intermediate_size": 32, "num_hidden_layers": 4},
        [6, 0],
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {**_HYBRID, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 0},
        [2, 2, 0],
    ),
    "olmo-hybrid": ("OlmoHybrid", {"num_hidden_layers": 4}, [6, 0]),
    "lfm2": ("Lfm2", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}, [1, 1]),
}


# Short tests of engines decode qwen3-next and lfm2. Those of prompts have granite-hybrid, but not its logits.
@pytest.mark.long(but=["jamba"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_keep_their_state_in_slices(name: str) -> None:
    family, changes, states = RECURRENT[name]
    model = seeded(tiny(family, **changes))
    conversion = decodes(model, by_token=True)
    assert [len(piece.states) for piece in conversion.slices] == states
    assert sum(states) == len(conversion.states)


# Of each kind of norm, rotation and gate one.
@pytest.mark.long(
    but=[
        *(f"torch.bfloat16-{name}" for name in ("gemma3", "gpt-oss", "jamba")),
        *("torch.float16-deepseek-v3", "torch.float32-cohere"),
    ]
)
@pytest.mark.parametrize("name", [*MODELS, *RECURRENT])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_native_operators_change_no_bit(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These products add in an order of their own.
    monkeypatch.setattr("lamina.convert.packing.panel_product", lambda: None)
    family, changes, *_ = {**MODELS, **RECURRENT}[name]
    model = seeded(tiny(family, **changes)).to(dtype)
    conversion = convert(model)
    runs = []
    for options in ({"backend": "torch"}, {}, {"q_first": False}):
        decoder = Decoder(
            conversion.attentions, conversion.bind(model, **options), conversion.attended(model)
        )
        logits = [decoder.step([0], [5], [0])]
        logits += [
            decoder.step([0, 1, 2], tokens, [at + 1, at, at])
            for at, tokens in enumerate(([7, 3, 98], [9, 4, 7]))
        ]
        runs.append([*logits, *(one for context in decoder.contexts for one in context)])
    for ours in runs[1:]:
        for plain, native in zip(runs[0], ours, strict=True):
            assert torch.equal(plain, native)


def test_state_is_for_one_rank_and_plain_code() -> None:
    conversion = convert(tiny("Lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"]))
    with pytest.raises(ConversionError, match="convert-shard-state"):
        conversion.sharded(2)
    with pytest.raises(ConversionError, match="convert-state-backend"):
        conversion.bind({}, "aot")


@pytest.mark.long(but=["mixtral-batched_mm"])
@pytest.mark.parametrize("experts", ["batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "gpt-oss"])
def test_experts_in_either_batched_form(name: str, experts: str) -> None:
    family, changes = MODELS[name]
    model = seeded(tiny(family, **changes))
    model.set_experts_implementation(experts)
    conversion = convert(model)
    grouped = any("_grouped_mm" in kind.source for kind in conversion.classes)
    assert grouped == (experts == "grouped_mm")
    decodes(model, conversion)


def test_experts_that_kernels_cannot_group() -> None:
    # Rows of 30 float32 are no multiple of 16 bytes.
    model = seeded(tiny("Qwen3Moe", **{**_MOE, "moe_intermediate_size": 30}, head_dim=16))
    conversion = convert(model)
    assert not any("_grouped_mm" in kind.source for kind in conversion.classes)
    model.set_experts_implementation("eager")  # it could not run either
    decodes(model, conversion)
