"""Measurement of this machine as a cost set, from which modelled replays predict live ones."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from lamina import host_memory
from lamina.convert import convert
from lamina.pipeline import CoreOptions
from lamina.pipeline.options import original_of
from laminabench.calibrate import front_end, workers
from laminabench.calibrate.calibration import (
    Calibration,
    described,
    measured,
    require_dtype,
    require_name,
)
from laminabench.calibrate.cost_set import ENGINE, Made, cost_set
from laminabench.calibrate.models import config_of
from laminabench.calibrate.rounds import OnProgress, Point, in_rounds
from laminabench.calibrate.terms import Control, Decode, Model, Prompts
from laminabench.catalog.cost_file import assumed_host
from laminabench.catalog.families import load_models
from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.systems.live.lamina.starting import on_cores
from laminabench.util.host import memory_per_core, processor
from laminabench.util.version import __version__

# The share of the time for workers and the server, and the server's alone; the rest is for rounds.
WORKERS_SHARE = 0.25
SERVER_SHARE = 0.05


def calibrate(
    source: str, name: str, seconds: float, on_progress: OnProgress, ray: str | None = None
) -> Calibration:
    """Measure for about so many seconds with a model of made-up weights; `name` will be the device's.

    Workers are processes of this machine, or actors of the Ray cluster at this address.
    """
    require_name(name)
    shape = model(source)
    require_dtype(shape, source)
    began, total = time.perf_counter(), int(seconds)
    on_progress(0, total)
    config = _config(source, shape)
    conversion = convert(config, torch.bfloat16)
    options = CoreOptions(dtype=torch.bfloat16, load_format="dummy")
    with on_cores(1):
        slices = Model(conversion, original_of(config, conversion, options))
        decode = Decode(conversion, float(host_memory.free_bytes()))
        control = Control(slices, decode)
        left = seconds * (1 - WORKERS_SHARE) - (time.perf_counter() - began)
        repeats = in_rounds([slices, decode, Prompts(conversion)], control, left, on_progress, total)
    passed = time.perf_counter() - began
    between: dict[Point, list[float]] = {}
    served: dict[Point, list[float]] = {}
    del slices, decode
    if ray or len(os.sched_getaffinity(0)) > 1:
        on_progress(min(int(passed), total), total)
        step_s = {int(rows): repeats.at(kind, rows) for kind, rows in repeats.of_kind("slices")}
        between = workers.measure(config, step_s, max(seconds * (1 - SERVER_SHARE) - passed, 0.0), ray)
        served = front_end.measure(config, seconds * SERVER_SHARE)
    now = datetime.now(UTC).date().isoformat()
    title = f"one core of {processor()}"
    made = Made(
        shape,
        name,
        f"{title}, {now}, laminabench {__version__}, torch {torch.__version__}, {control.isa}",
        title,
        ENGINE,
        memory_per_core(),
        float(np.median(control.bandwidths)),
        repeats,
        between,
        assumed_host(),
        "workers" if ray is None else "actors of Ray",
        served,
    )
    costs = cost_set(made)
    return Calibration(costs, described(costs, made, repeats, measured(made), time.perf_counter() - began))


def _config(source: str, shape: ModelShape) -> Any:
    """Return the model's configuration as the engine takes it."""
    if source.strip().lower() == shape.name and shape.name in load_models():
        return config_of(shape.name)
    return source
