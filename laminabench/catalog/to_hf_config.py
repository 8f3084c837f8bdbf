"""A model of the catalogue as the config.json that transformers would build it from."""

from __future__ import annotations

from typing import Any

from laminabench.catalog.models import UNRELEASED, load_models
from laminabench.catalog.toml_file import packaged
from laminabench.errors import UserError

# What the catalogue does not hold. None of it changes a shape; a window changes what attention reads.
ASSUMED = ("window", "RoPE base", "norm epsilon", "longest text", "special tokens")

# As in hf_config: OPT's table has two more rows than positions.
_OPT_OFFSET = 2

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def to_hf_config(name: str, longest_text: int | None = None) -> dict[str, Any]:
    """The config.json of a catalogue model: its sizes, and the family's defaults beyond them.

    `longest_text` is for models with made-up weights: positions that rotate are no weights, so there can be
    any number of them. No token is special then.
    """
    shape, family = load_models()[name], packaged("models.toml")[name]["family"]
    if family in UNRELEASED:
        raise UserError(
            "model-never-released",
            f"{name} was never released, and transformers has no model like it: only its sizes are known, "
            "which is enough for a modelled replay",
        )
    config: dict[str, Any] = {
        "model_type": family,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied_embeddings,
        "dtype": DTYPES.get(shape.dtype, "bfloat16"),
    }
    if longest_text is not None:
        config |= {"max_position_embeddings": longest_text, "bos_token_id": None, "eos_token_id": None}
    if family == "opt":
        return config | {
            "ffn_dim": shape.intermediate,
            "word_embed_proj_dim": shape.hidden,
            "max_position_embeddings": shape.positions - _OPT_OFFSET,
        }
    return config | {
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
    }
