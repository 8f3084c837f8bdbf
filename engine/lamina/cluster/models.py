"""Models as a process that workers run in has them: converted and loaded once, by what was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lamina.cluster.config import Weights
from lamina.pipeline.arenas import arena_shape
from lamina.pipeline.options import CoreOptions
from lamina.pipeline.original import original_of

if TYPE_CHECKING:
    from lamina.convert import Conversion


def without_scipy() -> None:
    """In a process that runs nothing but workers, before transformers is loaded: it would load scipy, for
    losses of models that find objects in pictures, and that takes a second.
    """
    if "scipy" not in sys.modules:
        sys.modules["scipy"] = None  # type: ignore[assignment]  # as for importlib: there is none


class Models:
    """A model is described as the front end does: source, dtype, rope, load_format, whole."""

    def __init__(self) -> None:
        self._conversions: dict[str, Conversion] = {}
        self._weights: dict[str, Weights] = {}

    def conversion(self, model: dict[str, Any]) -> Conversion:
        """Cut at its attention operators."""
        from lamina.convert import convert

        key = _key(model, "source", "dtype", "rope")
        if key not in self._conversions:
            dtype = model["dtype"] and getattr(torch, model["dtype"])
            conversion = convert(_source(model["source"]), dtype=dtype, rope=model["rope"])
            arena_shape(conversion)
            self._conversions[key] = conversion
        return self._conversions[key]

    def weights(self, model: dict[str, Any]) -> Weights:
        """As workers want them: bound to slices, or the model that each takes its part of."""
        key = _weights_key(model)
        if key not in self._weights:
            # One at a time: a front end that serves another model has no use for the last one's weights.
            self._weights.clear()
            conversion = self.conversion(model)
            options = CoreOptions(load_format=model["load_format"])
            original = original_of(_source(model["source"]), conversion, options)
            # Slices that all workers have alike are bound once, and in memory once.
            self._weights[key] = conversion.bind(original) if model["whole"] else original
        return self._weights[key]

    def has_weights(self, model: dict[str, Any]) -> bool:
        """Whether they are loaded."""
        return _weights_key(model) in self._weights


def _source(source: str | dict[str, Any]) -> Any:
    """A path, or a config as it was sent."""
    if isinstance(source, dict):
        import transformers

        return transformers.AutoConfig.for_model(**source)
    return Path(source)


def _weights_key(model: dict[str, Any]) -> str:
    return _key(model, "source", "dtype", "rope", "load_format", "whole")


def _key(model: dict[str, Any], *names: str) -> str:
    """What was asked for, and of files the state they are in: they may be others' next time."""
    files: list[Path] = []
    if isinstance(model["source"], str):
        path = Path(model["source"])
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(item.name, item.stat().st_mtime_ns, item.stat().st_size) for item in files if item.is_file()]
    return json.dumps([states, *(model[name] for name in names)], sort_keys=True)
