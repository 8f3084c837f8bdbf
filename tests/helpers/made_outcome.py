"""Traces and outcomes of replays that never were, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import TICKS_PER_S
from laminabench.traces.table import Trace, TraceMeta

STINTS = dict.fromkeys(("request", "batch", "first_iteration", "last_iteration"), np.zeros(0, np.int64))
# Percentiles that a summary has, as so many of a thousand.
POINTS = (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000))


def to_ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries by their paths."""
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}/{name}").items()}


def described(values: Sequence[int]) -> dict[str, float | None]:
    """A summary of ticks in milliseconds, the slow way."""
    if not values:
        return dict.fromkeys(("mean", *(name for name, _ in POINTS)))
    ordered = sorted(values)
    found = {
        name: ordered[max(0, -(-len(ordered) * some // 1000) - 1)] / (TICKS_PER_S / 1000)
        for name, some in POINTS
    }
    return {"mean": float(Fraction(sum(ordered), len(ordered))) / (TICKS_PER_S / 1000), **found}


def trace_of(prompt: Sequence[int], output: Sequence[int], arrival_s: Any = None, **meta: Any) -> Trace:
    """Requests of so many tokens, all of them there from the beginning unless it is said when they come."""
    arrival_s = np.zeros(len(prompt)) if arrival_s is None else np.asarray(arrival_s, np.float64)
    about = TraceMeta(**{"name": "made", **meta})
    return Trace(arrival_s, np.array(prompt, np.int32), np.array(output, np.int32), about)


def outcome_of(durations_s: Any, size: int = 10, columns: Columns | None = None, **more: Any) -> Outcome:
    """One batch of so many requests, iteration after iteration; `columns` are what is unlike that."""
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
