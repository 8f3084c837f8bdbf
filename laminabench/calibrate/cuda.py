"""Measurement of a GPU's kernels as a cost set: each kernel that the engine launches, by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from lamina.convert import convert
from lamina.pipeline.arenas import free_bytes
from laminabench.calibrate.calibration import (
    Calibration,
    described,
    measured,
    require_dtype,
    require_name,
)
from laminabench.calibrate.clock import GPU, Clock
from laminabench.calibrate.cost_set import Made, Words, cost_set
from laminabench.calibrate.gpu_timing import COPY_BYTES, copy_bandwidth, made_up, require_gpu, slug
from laminabench.calibrate.models import config_of
from laminabench.calibrate.rounds import OnProgress, in_rounds
from laminabench.calibrate.terms import Decode, Model, Prompts
from laminabench.catalog.cost_file import assumed_host
from laminabench.catalog.families import load_models
from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.util.errors import UserError
from laminabench.util.version import __version__

# This many layers have more weights of each matrix than caches hold; times are of one layer.
LAYERS = 8
WORDS = Words(
    "the engine's kernels",
    "the engine's own products, the weights of some layers in order",
    "slices as one CUDA graph less their matrix products, dealt out to operators by width",
    "choosing tokens",
    "decode attention by the CUDA kernels, all that is launched for a layer; both at once are their sum",
    "the fastest matrix product, and copying a gibibyte, reads and writes counted",
    "Memory is the card's, links are its memory.",
)


def device_name(card: str) -> str:
    """Return the device's name in a set; the catalogue's own names are of data sheets."""
    return f"measured-{slug(card)}"


def calibrate_gpu(source: str, name: str | None, seconds: float, on_progress: OnProgress) -> Calibration:
    """Measure the GPU for about so many seconds with some layers of a model of the catalogue."""
    require_gpu()
    card = torch.cuda.get_device_name()
    name = name or device_name(card)
    require_name(name)
    shape = model(source)
    require_dtype(shape, source)
    if shape.name not in load_models():
        raise UserError(
            "calibrate-gpu-model",
            f"--model {source}: on a GPU models of the catalogue are measured; name one",
        )
    memory = float(torch.cuda.get_device_properties(0).total_memory)
    try:
        return kernels(config_of(shape.name), shape, card, name, memory, seconds, on_progress)
    except torch.cuda.OutOfMemoryError as error:
        why = str(error).partition("\n")[0]
        raise UserError("calibrate-gpu-memory", f"--model {source}: {why}; name a smaller one") from error


def kernels(
    config: Any,
    shape: ModelShape,
    card: str,
    name: str,
    memory_bytes: float,
    seconds: float,
    on_progress: OnProgress,
    clock: Clock = GPU,
    bandwidth: Callable[[], float] = copy_bandwidth,
) -> Calibration:
    """Measure all terms of a cost set except the host's and those between workers."""
    began, total = time.perf_counter(), int(seconds)
    on_progress(0, total)
    shape = replace(shape, layers=min(LAYERS, shape.layers))
    config.num_hidden_layers = shape.layers
    conversion = convert(config, torch.bfloat16)
    slices = Model(conversion, made_up(config, clock.device), clock)
    copied: list[float] = []

    def control() -> float:
        copied.append(bandwidth())
        return 2 * COPY_BYTES / copied[-1]

    decode = Decode(conversion, float(free_bytes(clock.place)), clock)
    left = seconds - (time.perf_counter() - began)
    repeats = in_rounds([slices, decode, Prompts(conversion, clock)], control, left, on_progress, total)
    now = datetime.now(UTC).date().isoformat()
    made = Made(
        shape,
        name,
        f"{card}, {now}, laminabench {__version__}, torch {torch.__version__}",
        card,
        WORDS,
        memory_bytes,
        sorted(copied)[len(copied) // 2],
        repeats,
        {},
        assumed_host(),
    )
    costs = cost_set(made)
    return Calibration(costs, described(costs, made, repeats, measured(made), time.perf_counter() - began))
