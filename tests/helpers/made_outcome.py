"""Handmade traces and outcomes of replays."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import TICKS_PER_S
from laminabench.traces.table import Trace, TraceMeta

STINTS = dict.fromkeys(("request", "batch", "first_iteration", "last_iteration"), np.zeros(0, np.int64))
# A summary's percentiles, in thousandths.
POINTS = (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000))


def to_ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dictionaries by their paths."""
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}/{name}").items()}


def described(values: Sequence[int]) -> dict[str, float | None]:
    """Return a summary of ticks in milliseconds, computed the slow way."""
    if not values:
        return dict.fromkeys(("mean", *(name for name, _ in POINTS)))
    ordered = sorted(values)
    points = {
        name: ordered[max(0, -(-len(ordered) * some // 1000) - 1)] / (TICKS_PER_S / 1000)
        for name, some in POINTS
    }
    return {"mean": float(Fraction(sum(ordered), len(ordered))) / (TICKS_PER_S / 1000), **points}


def trace_of(prompt: Sequence[int], output: Sequence[int], arrival_s: Any = None, **meta: Any) -> Trace:
    """Return requests of these lengths, all there from the beginning unless `arrival_s` is given."""
    arrival_s = np.zeros(len(prompt)) if arrival_s is None else np.asarray(arrival_s, np.float64)
    about = TraceMeta(**{"name": "made", **meta})
    return Trace(arrival_s, np.array(prompt, np.int32), np.array(output, np.int32), about)


def outcome_of(durations_s: Any, size: int = 10, columns: Columns | None = None, **more: Any) -> Outcome:
    """Return one batch of `size` requests over all iterations; `columns` replace the defaults."""
    lasts = np.asarray(durations_s, np.float64)
    rows, nothing = len(lasts), np.zeros(len(lasts))
    iterations: Columns = {
        "batch": np.zeros(rows, np.int32),
        "iteration": np.arange(rows),
        "start_s": np.cumsum(lasts) - lasts,
        "duration_s": lasts,
        "size": np.full(rows, size, np.int32),
        "joined": np.array([size, *[0] * rows][:rows], np.int32),
        "kv_tokens": np.zeros(rows, np.int64),
        **dict.fromkeys(("model_s", "attention_s", "network_s", "host_s"), nothing),
    }
    for name, column in (columns or {}).items():
        iterations[name] = np.asarray(column, iterations[name].dtype)
    end_s = float((iterations["start_s"] + lasts).max(initial=0.0))
    known: dict[str, Any] = {
        "requests": {},
        "stints": STINTS,
        "timeline": {},
        "replica_busy_s": np.zeros(1),
        "attention_busy_s": 0.0,
        "end_s": end_s,
        "queue_empty_s": end_s,
        "peak_kv_tokens": 0,
        "kv_capacity_tokens": 0,
    }
    return Outcome(iterations=iterations, **(known | more))
