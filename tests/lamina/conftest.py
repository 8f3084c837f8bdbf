"""Small random models of every family, made by transformers in the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

# Slow to load, and not wanted at all by the tests below that run under a sanitizer.
if TYPE_CHECKING:
    import torch
    import transformers

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 120,
    "max_position_embeddings": 256,
    # Wide enough that greedy tokens differ from each other instead of settling on one.
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GQA = COMMON | {"num_key_value_heads": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
GEMMA = GQA | {"head_dim": 16, "query_pre_attn_scalar": 16}
MOE = GQA | {"num_experts_per_tok": 2, "experts_implementation": "batched_mm"}


OPT = {name: value for name, value in COMMON.items() if name != "intermediate_size"} | {
    "ffn_dim": 96,
    "init_std": 0.2,
    "word_embed_proj_dim": 64,
}
GPT2 = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    **{
        name: COMMON[name]
        for name in COMMON
        if name.endswith("token_id") or name in ("vocab_size", "initializer_range")
    },
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
# Multi-head latent attention, a dense first layer, and experts in groups beside a shared one.
MLA = COMMON | {
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "experts_implementation": "batched_mm",
}

# By name: the class of its config, and what that is made with.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", COMMON),
    "llama-gqa": ("Llama", GQA | {"rope_parameters": LLAMA3_ROPE}),
    "llama-tied": ("Llama", GQA | {"tie_word_embeddings": True, "attention_bias": True}),
    "opt": ("OPT", OPT),
    "opt-350m": ("OPT", OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "mistral": ("Mistral", GQA | {"sliding_window": 12}),
    "qwen2": ("Qwen2", GQA | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3", GQA | {"head_dim": 16}),
    "gemma": ("Gemma", GQA | {"head_dim": 16}),
    "gemma2": (
        "Gemma2",
        GEMMA | {"sliding_window": 11, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3Text", GEMMA | {"sliding_window": 10}),
    "phi3": ("Phi3", GQA),
    "gpt-neox": ("GPTNeoX", COMMON),
    "gpt2": ("GPT2", GPT2),
    "cohere": ("Cohere", GQA),
    "stablelm": ("StableLm", GQA),
    "llama4": (
        "Llama4Text",
        GQA
        | {"num_hidden_layers": 4, "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4}
        | {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 12}
        | {"attn_temperature_tuning": True, "floor_scale": 8, "attn_scale": 0.5},
    ),
    "gpt-oss": (
        "GptOss",
        MOE | {"head_dim": 16, "num_local_experts": 4, "sliding_window": 10, "rope_parameters": YARN_ROPE},
    ),
    "mixtral": ("Mixtral", MOE | {"num_local_experts": 4}),
    "deepseek-v2": (
        "DeepseekV2",
        MLA | {"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"},
    ),
    "deepseek-v3": ("DeepseekV3", MLA | {"n_group": 4, "topk_group": 2, "rope_parameters": YARN}),
    "qwen3-moe": ("Qwen3Moe", MOE | {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32}),
    "glm4-moe": (
        "Glm4Moe",
        MOE | {"head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 32, "n_group": 2},
    ),
    "minimax-m2": ("MiniMaxM2", MOE | {"head_dim": 16, "num_local_experts": 4, "intermediate_size": 32}),
}

# Layers that keep state between tokens, other than keys and values.
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    # The last layer has none, but comes after attention.
    "jamba": (
        "Jamba",
        GQA
        | {"num_hidden_layers": 5, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}
        | {"expert_layer_offset": 0, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "qwen3-next": (
        "Qwen3Next",
        GQA
        | _DELTA
        | _EXPERTS
        | {"num_hidden_layers": 4, "head_dim": 16, "linear_key_head_dim": 16}
        | {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        GQA
        | {"num_hidden_layers": 4, "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8}
        | {"mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
        | {"num_local_experts": 0, "shared_intermediate_size": 96},
    ),
    "olmo-hybrid": (
        "OlmoHybrid",
        GQA | _DELTA | {"num_hidden_layers": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    ),
    "lfm2": ("Lfm2", GQA | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
}

SmallModel = Callable[..., "transformers.PreTrainedModel"]


@pytest.fixture(scope="session")
def small_model() -> SmallModel:
    """A family's small model with random weights, the same every time."""

    import torch
    import transformers

    # Small models gain nothing by threads, and several test processes share the cores.
    torch.set_num_threads(1)

    def make(family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        kind, shape = (FAMILIES | RECURRENT)[family]
        config = getattr(transformers, f"{kind}Config")(**shape)
        with torch.random.fork_rng():
            torch.manual_seed(len(family))
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        return model.eval()

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for a `family`, and does not say which, runs for every one."""
    named = any("family" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "family" in metafunc.fixturenames and not named:
        metafunc.parametrize("family", list(FAMILIES))
