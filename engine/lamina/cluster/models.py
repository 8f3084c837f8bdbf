"""Models of a process that runs workers: each request is converted and loaded once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from lamina.cluster.messages import ModelSource, Weights
from lamina.emulation import EmulatedDevice, Emulation
from lamina.operators import Attended
from lamina.pipeline.arenas import arena_shape
from lamina.pipeline.options import CoreOptions, EngineError, ModelFacts, original_of

if TYPE_CHECKING:
    from lamina.convert import Conversion


def source_of(model: Any, options: CoreOptions) -> ModelSource:
    """Return the model that an engine was given, as workers can load or inherit it where they are."""
    if options.on_gpu:
        raise EngineError(
            "layout-device-elsewhere",
            "with a layout, what its workers run on is in it: give model_on and attention_on, and no device",
        )
    if isinstance(model, Emulation):
        return ModelSource("", None, options.rope, options.load_format, emulation=model)
    source: str | dict[str, Any]
    if isinstance(model, str | os.PathLike):
        path = Path(model).resolve()
        if not path.exists():
            raise EngineError("model-not-found", f"there is no model at {path}: give a folder or config.json")
        source = str(path)
    elif isinstance(model, dict):
        source = model
    elif hasattr(model, "to_dict") and not isinstance(model, torch.nn.Module):
        source = json.loads(json.dumps(model.to_dict(), default=str))
    else:
        raise EngineError(
            "layout-model-object", "workers load the model: give its folder or config, not an object"
        )
    dtype = str(options.dtype).removeprefix("torch.") if options.dtype else None
    return ModelSource(
        source, dtype, options.rope, options.load_format, absorb=options.absorb, q_first=options.overlap
    )


def without_unused() -> None:
    """Keep transformers from loading scipy, and what needs it, in a process that only runs workers.

    They are for losses of object detection models and for decoding by two, and take seconds to load.
    """
    for name in ("sklearn", "scipy"):
        if name not in sys.modules:
            sys.modules[name] = None  # type: ignore[assignment]  # as for importlib: there is none


class Models:
    """Conversions and weights by their source."""

    def __init__(self) -> None:
        self._conversions: dict[str, Conversion] = {}
        self._weights: dict[str, Weights] = {}
        self._attended: dict[str, Attended] = {}  # of those with weights

    def conversion(self, model: ModelSource) -> Conversion:
        from lamina.convert import convert, emulated

        if model.emulation:
            return emulated.emulated(model.emulation)
        key = _key(msgspec.structs.replace(model, load_format="dummy", whole=True, q_first=True))
        if key not in self._conversions:
            dtype = model.dtype and getattr(torch, model.dtype)
            conversion = convert(_loadable(model), dtype, model.rope, model.absorb)
            arena_shape(conversion)
            self._conversions[key] = conversion
        return self._conversions[key]

    def facts(self, model: ModelSource) -> ModelFacts:
        facts = ModelFacts.of(self.conversion(model))
        # Of KV on devices that are not here there are slots, and nothing in them.
        return msgspec.structs.replace(facts, head_dim=0) if model.emulation else facts

    def bound(self, model: ModelSource) -> tuple[Weights, Attended]:
        """Return the model that workers are forked with."""
        if model.emulation:
            from lamina.convert.emulated import slices_on

            device = EmulatedDevice(model.emulation)
            return slices_on(device), self.attended(model)._replace(emulated=device)
        return self.weights(model), self.attended(model)

    def weights(self, model: ModelSource) -> Weights:
        """Return the weights for workers: bound to slices, or the model that each takes its part of."""
        key = _key(model)
        if key not in self._weights:
            # One at a time: a front end that serves another model has no use for the last one's weights.
            self._weights.clear()
            self._attended.clear()
            conversion = self.conversion(model)
            options = CoreOptions(load_format=model.load_format)
            original = original_of(_loadable(model), conversion, options)
            # Slices that are identical on all workers are bound once, and in memory once.
            self._weights[key] = conversion.bind(original, q_first=model.q_first) if model.whole else original
            self._attended[key] = conversion.attended(original)
        return self._weights[key]

    def attended(self, model: ModelSource) -> Attended:
        """Return the attention workers' part of a model; weights are loaded only where they have some."""
        conversion = self.conversion(model)
        if not any(op.sinks or op.absorbs for op in conversion.attentions):
            return conversion.attended({})
        self.weights(model)
        return self._attended[_key(model)]

    def has_weights(self, model: ModelSource) -> bool:
        return _key(model) in self._weights


def _loadable(model: ModelSource) -> Path | dict[str, Any]:
    return Path(model.source) if isinstance(model.source, str) else model.source


def _key(model: ModelSource) -> str:
    """Return the cache key of a model, with the state of its files: they may have been replaced."""
    files: list[Path] = []
    if isinstance(model.source, str):
        path = Path(model.source)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]
    return json.dumps([states, msgspec.to_builtins(model)], sort_keys=True)
