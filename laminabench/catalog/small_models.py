"""A small config.json of every family that the converter supports: made up, to be converted in a second."""

from __future__ import annotations

from collections.abc import Mapping

# Four layers show all kinds of slices: the first, two equal ones, the one before the last, the last.
_SIZES: dict[str, object] = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GQA = _SIZES | {"num_key_value_heads": 2}
_MOE = _GQA | {"num_experts_per_tok": 2}
_QWEN_MOE = _MOE | {"num_experts": 4, "moe_intermediate_size": 352}
_ALTERNATING = {"sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA = _GQA | {"head_dim": 64}
# Latent KV, a dense first layer, experts in groups and a shared one.
_MLA = _SIZES | {
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 352,
    "n_group": 4,
    "topk_group": 2,
}
# Attention in every other layer; between, layers that keep state.
_HYBRID = _GQA | {"layer_types": ["linear_attention", "full_attention"] * 2}
_DELTA = {"linear_num_value_heads": 8, "linear_num_key_heads": 4}
_HEADS = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}

SMALL_MODELS: Mapping[str, dict[str, object]] = {
    "llama": _GQA | {"model_type": "llama"},
    "opt": _SIZES | {"model_type": "opt", "ffn_dim": 2048, "word_embed_proj_dim": 512},
    "mistral": _GQA | {"model_type": "mistral", "sliding_window": 256},
    "qwen2": _GQA | {"model_type": "qwen2"},
    "qwen3": _GQA | {"model_type": "qwen3", "head_dim": 64},
    "gemma": _GEMMA | {"model_type": "gemma"},
    "gemma2": _GEMMA | _ALTERNATING | {"model_type": "gemma2"},
    "gemma3": _GEMMA | _ALTERNATING | {"model_type": "gemma3_text"},
    "phi3": _GQA | {"model_type": "phi3"},
    "gpt-neox": _SIZES | {"model_type": "gpt_neox"},
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 4,
        "n_embd": 512,
        "n_head": 8,
        "n_positions": 2048,
        **{name: _SIZES[name] for name in ("vocab_size", "dtype", "bos_token_id", "eos_token_id")},
    },
    "cohere": _GQA | {"model_type": "cohere"},
    "stablelm": _GQA | {"model_type": "stablelm"},
    "mixtral": _MOE | {"model_type": "mixtral", "num_local_experts": 4},
    "qwen2-moe": _QWEN_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 704},
    "qwen3-moe": _QWEN_MOE | {"model_type": "qwen3_moe", "head_dim": 64},
    "olmoe": _MOE | {"model_type": "olmoe", "num_experts": 4, "intermediate_size": 352},
    "glm4-moe": _MOE
    | {"model_type": "glm4_moe", "head_dim": 64, "n_routed_experts": 4, "moe_intermediate_size": 352},
    "deepseek-v2": _MLA | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
    "deepseek-v3": _MLA | {"model_type": "deepseek_v3"},
    "minimax-m2": _MOE
    | {"model_type": "minimax_m2", "head_dim": 64, "num_local_experts": 4, "intermediate_size": 352},
    "llama4": _GQA
    | {"model_type": "llama4_text", "head_dim": 64, "intermediate_size_mlp": 1408, "num_local_experts": 4}
    | {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 256},
    "gpt-oss": _MOE
    | _ALTERNATING
    | {"model_type": "gpt_oss", "head_dim": 64, "num_local_experts": 4, "sliding_window": 128},
    "jamba": _MOE
    | {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}
    | {"mamba_d_state": 16, "mamba_dt_rank": 32},
    "qwen3-next": _QWEN_MOE
    | _HYBRID
    | _DELTA
    | _HEADS
    | {"model_type": "qwen3_next", "head_dim": 64, "shared_expert_intermediate_size": 352},
    "granite-hybrid": _HYBRID
    | {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2}
    | {"mamba_d_state": 32, "mamba_d_head": 64, "mamba_n_heads": 16, "mamba_n_groups": 1}
    | {"num_local_experts": 0, "shared_intermediate_size": 1408},
    "olmo-hybrid": _HYBRID | _DELTA | _HEADS | {"model_type": "olmo_hybrid"},
    "lfm2": _HYBRID | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2},
}
