"""Measure this machine, and make a cost set of it by which modelled replays predict live ones."""

from __future__ import annotations

import os
import re
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from lamina import host_memory
from lamina.convert import convert
from lamina.pipeline import CoreOptions
from lamina.pipeline.options import original_of
from laminabench.bench.calibrate import machine, workers
from laminabench.bench.calibrate.cost_set import Made, cost_set
from laminabench.bench.calibrate.rounds import (
    UNSTABLE,
    Point,
    Seconds,
    Told,
    in_rounds,
    mean_spread,
    relative_spread,
)
from laminabench.bench.calibrate.terms import Control, Decode, Model, Prompts
from laminabench.bench.mini import config_of
from laminabench.catalog.cost_file import assumed_host
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.models import ModelShape, load_models
from laminabench.errors import UserError
from laminabench.systems.live.lamina.setup import on_cores
from laminabench.version import __version__

_NAME = re.compile(r"[a-z][a-z0-9-]*")
# Of the time, what workers get; the rest is for rounds.
WORKERS_SHARE = 0.2


@dataclass(frozen=True)
class Calibration:
    """The set, and how the measuring went."""

    costs: CostSet
    facts: dict[str, Any]


def calibrate(source: str, name: str, seconds: float, told: Told) -> Calibration:
    """Measure for about so many seconds with a model of made-up weights; `name` will be the device's."""
    if name in load_devices() or not _NAME.fullmatch(name):
        why = "the catalogue has a device of that name" if name in load_devices() else "no name of a device"
        raise UserError(
            "calibrate-name", f"--name {name}: {why}; take another one, of small letters, digits and hyphens"
        )
    shape = model(source)
    if shape.dtype != "bf16":
        raise UserError(
            "calibrate-dtype",
            f"--model {source} is in {shape.dtype}; what is measured is bf16: name such a one",
        )
    began, total = time.perf_counter(), int(seconds)
    told(0, total)
    config = _config(source, shape)
    conversion = convert(config, torch.bfloat16)
    options = CoreOptions(dtype=torch.bfloat16, load_format="dummy")
    with on_cores(1):
        slices = Model(conversion, original_of(config, conversion, options))
        decode = Decode(conversion, float(host_memory.free_bytes()))
        control, isa = Control(slices, decode), decode.worker.native.isa
        left = seconds * (1 - WORKERS_SHARE) - (time.perf_counter() - began)
        found = in_rounds([slices, decode, Prompts(conversion)], control, left, told, total)
    passed = time.perf_counter() - began
    between: dict[Point, list[float]] = {}
    del slices, decode
    if len(os.sched_getaffinity(0)) > 1:
        told(min(int(passed), total), total)
        step_s = {int(rows): found.at(kind, rows) for kind, rows in found.of_kind("slices")}
        between = workers.measure(config, step_s, max(seconds - passed, 0.0))
    now = datetime.now(UTC).date().isoformat()
    title = f"one core of {machine.processor()}"
    made = Made(
        shape,
        name,
        f"{title}, {now}, laminabench {__version__}, torch {torch.__version__}, {isa}",
        title,
        machine.memory_per_core(),
        float(np.median(control.bandwidths)),
        found,
        between,
        assumed_host(),
    )
    costs = cost_set(made)
    return Calibration(costs, _facts(costs, made, time.perf_counter() - began))


def _config(source: str, shape: ModelShape) -> Any:
    """As the engine takes it."""
    if source.strip().lower() == shape.name and shape.name in load_models():
        return config_of(shape.name)
    return source


def _facts(costs: CostSet, made: Made, took_s: float) -> dict[str, Any]:
    """For --json; of every term how often it was measured, and how steadily."""
    found, host, network = made.found, costs.host, next(iter(costs.networks.values()), None)
    control = relative_spread(found.controls)
    products = [f"gemm {matrix.name}" for matrix in (*made.shape.layer_gemms(), made.shape.lm_head_gemm())]
    drift = {name: found.drift(name) for name in found.columns}
    rows = [
        _row("slices", found.of_kind("slices"), drift[Model.name]),
        _row("matrix products", found.of_kind(*products), drift[Model.name]),
        _row("choosing tokens", found.of_kind("sampler"), drift[Model.name]),
        _row(Decode.name, found.of_kind("decode", "skew"), drift[Decode.name]),
        _row(Prompts.name, found.of_kind("prompt"), drift[Prompts.name]),
        *(_row(what, made.between_of(kind)) for what, kind in BETWEEN.items() if made.between),
    ]
    return {
        "model": made.shape.name,
        "device": costs.devices[made.name].describe(),
        "measured_on": made.source,
        "seconds": took_s,
        "rounds": found.rounds,
        "control_spread_percent": 100 * control,
        "control_drift_percent": 100 * max(drift.values()),
        "stable": control <= UNSTABLE,
        "terms": rows,
        "host": {
            "kind": host.origin.kind,
            "per_step_s": host.per_step_s,
            "per_request_s": host.per_request_s,
        },
        "network": None if network is None else asdict(network),
    }


# What workers have between them.
BETWEEN = {"between slice and attention": "trip", "between iterations": "boundary"}


def _row(what: str, points: Seconds, drift: float = 0.0) -> dict[str, Any]:
    spread = mean_spread(points)
    return {
        "term": what,
        "points": len(points),
        "repeats": min(map(len, points.values())),
        "spread_percent": 100 * spread,
        "unstable": max(spread, drift) > UNSTABLE,
    }
