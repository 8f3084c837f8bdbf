"""A model and its deployment on this machine, as the reference engine and vLLM are set up with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.families import load_models
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import priced_devices
from laminabench.catalog.models import ModelShape
from laminabench.requests.replay import ReplayRequest
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

CPU = "cpu"
MODEL = "llama-mini"
# Sequences that decode together: the engine's own default, so that all decode the same batches.
MAX_SEQUENCES = 256
# The default share of free memory for KV, as in the engine.
KV_SHARE = 0.25
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class LocalSetup:
    """The model and the devices of a replay on this machine."""

    model: ModelShape
    source: str  # a name of the catalogue, or the path of a config.json or of a model's folder
    deployment: Deployment

    @property
    def of_catalogue(self) -> bool:
        return self.model.name in load_models() and self.source.strip().lower() == self.model.name

    @property
    def weights(self) -> Path | None:
        """The folder that they are read from; None where they are made up."""
        path = Path(self.source)
        there = not self.of_catalogue and path.is_dir() and any(path.glob("*.safetensors"))
        return path if there else None

    @property
    def config_file(self) -> Path:
        """The configuration of a model that is not in the catalogue."""
        path = Path(self.source)
        return path / "config.json" if path.is_dir() else path

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = safe_parse.json_value(safe_parse.content(self.config_file))
        return config


def in_dtype(shape: ModelShape, dtype: str | None) -> ModelShape:
    """Return the model as it runs here: weights and KV of `dtype` if given; windows keep all of KV."""
    if dtype is not None:
        experts = shape.experts and replace(shape.experts, dtype="")
        shape = replace(shape, dtype=dtype, kv_dtype=dtype, experts=experts)
    if narrow := {shape.dtype, shape.expert_dtype, shape.kv_dtype} - set(DTYPES):
        raise UserError(
            "model-narrow-live",
            f"{shape.name} is in {', '.join(sorted(narrow))}; what runs here is in {', '.join(DTYPES)}: "
            "--dtype bf16",
        )
    return replace(shape, window=None)


def looked_up(request: ReplayRequest) -> dict[str, Any]:
    """Return what a settled request names: the fields of a LocalSetup."""
    assert request.model
    assert request.deployment
    devices = priced_devices(request.price, request.price_basis, request.power)
    return {
        "model": in_dtype(model(request.model), request.dtype),
        "source": request.model,
        "deployment": parse_deployment(request.deployment, devices),
    }


def free_bytes() -> float:
    """Return this machine's free memory."""
    from lamina import host_memory

    return float(host_memory.free_bytes())
