"""The model whose weights slices run with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lamina.model import load_original
from lamina.pipeline.options import CoreOptions, EngineError

if TYPE_CHECKING:
    from lamina.convert import Conversion


def original_of(model: Any, conversion: Conversion, options: CoreOptions) -> Any:
    """The model object itself, or the one that the folder or config describes."""
    if isinstance(model, torch.nn.Module):
        if model.dtype != conversion.dtype:
            raise EngineError(
                "model-dtype-differs",
                f"the model is {model.dtype} and {conversion.dtype} was asked for: convert it first",
            )
        place = next(model.parameters()).device
        if place.type != options.place.type:
            raise EngineError(
                "model-device-differs",
                f"the model is on {place} and the engine on {options.device}: move one",
            )
        return model
    folder = Path(model) if isinstance(model, str | os.PathLike) else None
    if folder and not folder.is_dir():
        folder = None
    loaded = load_original(conversion.config, folder, conversion.dtype, options.load_format)
    return loaded.to(options.device)
