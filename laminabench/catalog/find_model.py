"""A model from what a person writes: a name, or a config.json; and the config.json of a name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from laminabench.catalog.entries import packaged, pick
from laminabench.catalog.models import DTYPE_BYTES, FAMILIES, UNRELEASED, ModelShape, load_models
from laminabench.errors import UserError

# Between a model and the type of its numbers: llama3-70b@fp8.
_IN = "@"


def model(name: str) -> ModelShape:
    """The model called `name`, or described by the Hugging Face config.json at that path."""
    path = Path(name)
    # A folder that happens to be called like a model of the catalogue does not hide it.
    if path.suffix == ".json" or (name not in load_models() and path.is_dir()):
        return from_config_json(path / "config.json" if path.is_dir() else path)
    known, _, dtype = name.strip().lower().rpartition(_IN)
    if known in load_models() and dtype in DTYPE_BYTES:
        hint = f"(or model it: only a modelled replay takes {known} in {dtype})"
    else:
        hint = "(or give the path of a Hugging Face config.json)"
    return pick("model", name, load_models(), hint=hint)


def modelled(name: str) -> ModelShape:
    """As `model`; one that nobody has to run may be held in another type: `llama3-70b@fp8`, weights and KV.

    Its name says so from then on, for what it is compared with is usually not.
    """
    known, found, dtype = name.rpartition(_IN)
    if not found or Path(name).exists():
        return model(name)
    shape = model(known)
    dtype = pick("type of weights and KV", dtype, {each: each for each in DTYPE_BYTES})
    return replace(shape, name=f"{shape.name}{_IN}{dtype}", dtype=dtype, kv_dtype=dtype)


_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}

_WRITTEN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

# What the catalogue does not hold. None of it changes a shape; a window changes what attention reads.
ASSUMED = ("window", "RoPE base", "norm epsilon", "longest text", "special tokens")

# OPT's table has two more rows than positions: transformers offsets them by the padding token.
_OPT_OFFSET = 2


def from_config_json(path: Path) -> ModelShape:
    """The shape described by `path`; a UserError says which key is missing or not supported."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("model-config-unreadable", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError("model-config-not-json", f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError("model-config-not-json", f"{path}: a Hugging Face config.json is a JSON object")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UserError(
            "model-family-unsupported",
            f"{path}: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}",
        )
    traits: dict[str, Any] = {**FAMILIES[family]}
    heads = _size(path, config, "num_attention_heads")
    hidden = _size(path, config, "hidden_size")
    if family == "opt":
        if config.get("word_embed_proj_dim", hidden) != hidden:
            raise UserError(
                "model-config-unsupported",
                f"{path}: word_embed_proj_dim differs from hidden_size (OPT-350M); not supported",
            )
        positions = _size(path, config, "max_position_embeddings") + _OPT_OFFSET
        traits |= {"kv_heads": heads, "head_dim": hidden // heads, "positions": positions}
    else:
        # Absent and null both mean "as many as heads".
        traits["kv_heads"] = _size(path, config, "num_key_value_heads", heads)
        traits["head_dim"] = _size(path, config, "head_dim", hidden // heads)
        traits["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
        if config.get("attention_bias"):  # on the output matrix too, a few kB that are not counted
            traits["qkv_bias"] = True
    return ModelShape(
        name=str(config.get("_name_or_path") or path.resolve().parent.name or path.stem),
        layers=_size(path, config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        intermediate=_size(path, config, "ffn_dim" if family == "opt" else "intermediate_size"),
        vocab=_size(path, config, "vocab_size"),
        dtype=_dtype(path, config),
        source=str(path),
        **traits,
    )


def _size(path: Path, config: dict[str, object], key: str, absent: int | None = None) -> int:
    value = config.get(key)
    if value is None and absent is not None:
        return absent
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(
            "model-config-bad-size", f"{path}: {key} is {value!r}; expected a whole number of at least 1"
        )
    return value


def _dtype(path: Path, config: dict[str, object]) -> str:
    if config.get("quantization_config"):
        raise UserError(
            "model-config-unsupported",
            f"{path}: quantised weights are not modelled; use the config of the original model",
        )
    # transformers 4 wrote torch_dtype, 5 writes dtype.
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _DTYPES:
        raise UserError(
            "model-config-unsupported",
            f"{path}: dtype {name!r} is not supported; supported: {', '.join(_DTYPES)}",
        )
    return _DTYPES[name]


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
        "dtype": _WRITTEN.get(shape.dtype, "bfloat16"),
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
