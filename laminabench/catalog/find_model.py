"""A model from what a person writes: a name of the catalogue, or the path of a config.json."""

from __future__ import annotations

from pathlib import Path

from laminabench.catalog.hf_config import from_config_json
from laminabench.catalog.models import ModelShape, load_models
from laminabench.catalog.names import pick


def model(name: str) -> ModelShape:
    """The model called `name`, or described by the Hugging Face config.json at that path."""
    path = Path(name)
    # A folder that happens to be called like a model of the catalogue does not hide it.
    if path.suffix == ".json" or (name not in load_models() and path.is_dir()):
        return from_config_json(path / "config.json" if path.is_dir() else path)
    return pick("model", name, load_models(), hint="(or give the path of a Hugging Face config.json)")
