"""Read a model's shape from a Hugging Face config.json."""

from __future__ import annotations

import json
from pathlib import Path

from laminabench.catalog.models import FAMILIES, ModelShape
from laminabench.errors import UserError

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}

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
    return _opt(path, config) if family == "opt" else _llama_like(path, config, family)


def _llama_like(path: Path, config: dict[str, object], family: str) -> ModelShape:
    heads = _size(path, config, "num_attention_heads")
    hidden = _size(path, config, "hidden_size")
    traits = FAMILIES[family].copy()
    traits["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    if config.get("attention_bias"):  # on the output matrix too, a few kB that are not counted
        traits["qkv_bias"] = True
    return ModelShape(
        name=_name(path, config),
        layers=_size(path, config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        # Absent and null both mean "as many as heads".
        kv_heads=_size(path, config, "num_key_value_heads", heads),
        head_dim=_size(path, config, "head_dim", hidden // heads),
        intermediate=_size(path, config, "intermediate_size"),
        vocab=_size(path, config, "vocab_size"),
        dtype=_dtype(path, config),
        source=str(path),
        **traits,
    )


def _opt(path: Path, config: dict[str, object]) -> ModelShape:
    heads = _size(path, config, "num_attention_heads")
    hidden = _size(path, config, "hidden_size")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise UserError(
            "model-config-unsupported",
            f"{path}: word_embed_proj_dim differs from hidden_size (OPT-350M); not supported",
        )
    return ModelShape(
        name=_name(path, config),
        layers=_size(path, config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=_size(path, config, "ffn_dim"),
        vocab=_size(path, config, "vocab_size"),
        positions=_size(path, config, "max_position_embeddings") + _OPT_OFFSET,
        dtype=_dtype(path, config),
        source=str(path),
        **FAMILIES["opt"],
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


def _name(path: Path, config: dict[str, object]) -> str:
    return str(config.get("_name_or_path") or path.resolve().parent.name or path.stem)
