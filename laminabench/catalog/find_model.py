"""A model from what a person writes: a name of the catalogue, or the path of a config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from laminabench.catalog.entries import pick
from laminabench.catalog.models import DTYPE_BYTES, ModelShape, load_models

# Between a model and the type of its numbers: llama3-70b@fp8.
_IN = "@"


def model(name: str) -> ModelShape:
    """The model called `name`, or described by the Hugging Face config.json at that path."""
    path = Path(name)
    # A folder that happens to be called like a model of the catalogue does not hide it.
    if path.suffix == ".json" or (name not in load_models() and path.is_dir()):
        from laminabench.catalog.hf_config import from_config_json

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
