"""A model as the place where workers run is told of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from lamina.pipeline import CoreOptions, EngineError


def source_of(model: Any, options: CoreOptions) -> dict[str, Any]:
    """The model as the workers' machine is told of it: each of them loads or inherits it there."""
    if options.place.type != "cpu":
        raise EngineError(
            "layout-device-unsupported",
            "workers on GPUs are not there yet: leave device out, or leave layout out",
        )
    if options.overcommit:
        raise EngineError(
            "layout-overcommit-unsupported",
            "overcommit is for an engine in one process: leave it out, or leave layout out",
        )
    if isinstance(model, str | os.PathLike):
        path = Path(model).resolve()
        if not path.exists():
            raise EngineError(
                "model-not-found", f"there is no model at {path}: give a folder or a config.json"
            )
        source: Any = str(path)
    elif isinstance(model, dict):
        source = model
    elif hasattr(model, "to_dict") and not isinstance(model, torch.nn.Module):
        source = json.loads(json.dumps(model.to_dict(), default=str))
    else:
        raise EngineError(
            "layout-model-object",
            "workers load the model themselves: give its folder or its config, not a model object",
        )
    return {
        "source": source,
        "dtype": options.dtype and str(options.dtype).removeprefix("torch."),
        "rope": options.rope,
        "load_format": options.load_format,
    }
