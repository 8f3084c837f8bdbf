"""A model from what a person writes: a name, or a config.json; and the config.json of a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from laminabench.catalog.entries import packaged, pick
from laminabench.catalog.families import UNRELEASED, load_models
from laminabench.catalog.hf_config import read_config, write_config
from laminabench.catalog.hf_quantization import KEY as QUANTIZATION
from laminabench.catalog.models import BLOCKS, DTYPE_BYTES, ModelShape
from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.json import Json

# Between a model and the type of its numbers: llama3-70b@fp8.
_IN = "@"


def model(name: str) -> ModelShape:
    """Return the model called `name`, or described by the Hugging Face config.json at that path."""
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
    """Return `model(name)`; modelled ones may have another type: `llama3-70b@fp8`, weights and KV.

    Experts are, too; KV stays as it is for types with a scale a block, which only weights have. Its name says
    so from then on, for what it is compared with is usually not.
    """
    known, separator, dtype = name.rpartition(_IN)
    if not separator or Path(name).exists():
        return model(name)
    shape = model(known)
    dtype = pick("type of weights and KV", dtype, {each: each for each in DTYPE_BYTES})
    kv = shape.kv_dtype if dtype in BLOCKS else dtype
    experts = shape.experts and replace(shape.experts, dtype="")
    return replace(shape, name=f"{shape.name}{_IN}{dtype}", dtype=dtype, kv_dtype=kv, experts=experts)


# What the catalogue does not hold, and is the family's. None of it changes a shape. A window changes what
# attention reads; where the catalogue has a model's own (gpt-oss, Llama-4), that is written instead.
ASSUMED = ("window", "RoPE base", "norm epsilon", "longest text", "special tokens")


def from_config_json(path: Path) -> ModelShape:
    """Return the shape described by `path`; a UserError says which key is missing or not supported."""
    config = _json(path)
    # modelopt's own file on what it quantized, next to a config that does not say it.
    quantization_file = path.with_name("hf_quant_config.json")
    if not config.get(QUANTIZATION) and path.name == "config.json" and quantization_file.exists():
        config[QUANTIZATION] = _json(quantization_file).get("quantization")
    return read_config(path, config, path.resolve().parent.name or path.stem)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = safe_parse.json_value(safe_parse.content(path))
    except OSError as error:
        raise UserError("model-config-unreadable", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError("model-config-not-json", f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError("model-config-not-json", f"{path}: a Hugging Face config.json is a JSON object")
    return value


def to_hf_config(name: str, longest_text: int | None = None) -> dict[str, Json]:
    """Return the config.json of a catalogue model: its sizes, and the family's defaults beyond them.

    It leaves out the formats of released weights (`quantization_config`): models that are made
    of it have weights of 16 bits. `longest_text` is for made-up weights: positions that rotate are no
    weights, so there can be any number of them. No token is special then.
    """
    shape, family = load_models()[name], packaged("models.toml")[name]["family"]
    if family in UNRELEASED:
        raise UserError(
            "model-never-released",
            f"{name} was never released, and transformers has no model like it: only its sizes are known, "
            "which is enough for a modelled replay",
        )
    return write_config(shape, family, longest_text)
