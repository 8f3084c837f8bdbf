"""Families of models, by what they differ in next to sizes; the catalogue's models of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from laminabench.catalog.entries import packaged
from laminabench.catalog.model_parts import Experts, Latent, Window
from laminabench.catalog.models import ModelShape

# Fields of a ModelShape.
Fields = dict[str, Any]

# What differs besides sizes, by transformers' names: these can be read from a config.json and written as one.
FAMILIES: Mapping[str, Fields] = {
    "llama": {},
    "mistral": {},
    "opt": {"gated_mlp": False, "all_biases": True, "rotary": False, "tied_embeddings": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "mixtral": {},
    "qwen3_moe": {"qk_norm": True},
    "gpt_oss": {"qkv_bias": True, "output_bias": True, "sinks": True},
    "llama4_text": {},
    "glm4_moe": {"qkv_bias": True},
    "minimax_m2": {"qk_norm": True, "qk_norm_over_heads": True, "router_dtype": "fp32"},
    "deepseek_v2": {},
    "deepseek_v3": {},
}

# Known from papers alone: no model was released.
UNRELEASED: Mapping[str, Fields] = {
    "gpt3": {"gated_mlp": False, "all_biases": True, "rotary": False, "tied_embeddings": True},
    "chinchilla": {
        "gated_mlp": False,
        "rotary": False,
        "relative_positions": True,
        "tied_embeddings": True,
    },
}

PARTS = {"experts": Experts, "latent": Latent, "window": Window}


@cache
def load_models() -> Mapping[str, ModelShape]:
    models: dict[str, ModelShape] = {}
    families = {**FAMILIES, **UNRELEASED}
    for name, row in packaged("models.toml").items():
        fields = {key: value for key, value in row.items() if key != "family"}
        fields.setdefault("kv_heads", fields["heads"])
        fields.setdefault("head_dim", fields["hidden"] // fields["heads"])
        for key, part in PARTS.items():
            if key in fields:
                fields[key] = part(**fields[key])
        models[name] = ModelShape(name=name, **{**families[row["family"]], **fields})
    return models


def released_models() -> Mapping[str, ModelShape]:
    """Return the catalogue's trained models: neither known from papers alone nor made up."""
    rows = packaged("models.toml")
    return {
        name: shape
        for name, shape in load_models().items()
        if rows[name]["family"] not in UNRELEASED and not rows[name]["source"].startswith("made up")
    }


def same_sizes(called: str, source: str) -> bool:
    """Return whether a catalogue's source is of this model, or of the one that it was trained on from."""
    name = source.rsplit(" ", 1)[-1]
    return source.endswith(called) or ("/" in name and called.startswith(f"{name}-"))
