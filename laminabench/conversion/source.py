"""A model to convert, by a name of the catalogue or of a family, or by a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laminabench.catalog.entries import pick
from laminabench.catalog.families import load_models
from laminabench.catalog.find_model import to_hf_config
from laminabench.catalog.small_models import SMALL_MODELS
from laminabench.util import safe_parse
from laminabench.util.errors import UserError


@dataclass(frozen=True)
class ModelSource:
    """A model to convert: its config or where that is, and where the shapes come from."""

    name: str
    origin: str  # "catalogue", "family" or "config"
    shapes_from: str
    config: Mapping[str, Any] | Path

    def layers(self) -> int | None:
        """Return how many layers there are, where that is known before the config is fully read."""
        config = self.config
        if isinstance(config, Path):
            try:
                config = safe_parse.json_value(safe_parse.content(config))
            except (OSError, ValueError, UserError):
                return None
        layers = (
            config.get("num_hidden_layers", config.get("n_layer")) if isinstance(config, Mapping) else None
        )
        return layers if isinstance(layers, int) else None


def model_source(name: str) -> ModelSource:
    """Return the model called `name`; a UserError suggests what was meant."""
    path, catalogue = Path(name), load_models()
    # As with --model elsewhere: a folder with the name of a known model does not hide it.
    if path.suffix == ".json" or (name not in catalogue and name not in SMALL_MODELS and path.is_dir()):
        file = path / "config.json" if path.is_dir() else path
        called = file.resolve().parent.name if file.name == "config.json" else file.stem
        return ModelSource(_printable(called or name), "config", _printable(str(file)), file)
    known = {one: one for one in (*catalogue, *SMALL_MODELS)}
    key = pick("model", name, known, hint="(or give the path of a Hugging Face config.json)")
    if key in SMALL_MODELS:
        return ModelSource(key, "family", "a small config made up to show the family", SMALL_MODELS[key])
    return ModelSource(key, "catalogue", f"the catalogue: {catalogue[key].source}", to_hf_config(key))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    from laminabench.traces.formats.wording import printable

    return printable(text)
