"""Replays and frames that figures of several papers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from laminabench.sim.outcome import Outcome
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.workflows.compare.spec import longest_fitting, without_longer
from laminabench.workflows.replay import Workload, replay

# Tokens that every request of one length makes: enough for a mean step, few enough that its context stays.
STEPS = 12


def stacked(parts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of each part, whose columns are arrays, or one value for all of its rows."""
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


def ends(values: pd.Series[float]) -> tuple[float, float]:
    """Return the lowest and the highest value."""
    return float(values.min()), float(values.max())


def requests(count: int, context: int) -> Trace:
    """Return so many requests that end with this context, all there at once."""
    prompts, outputs = np.full(count, context - STEPS, np.int32), np.full(count, STEPS, np.int32)
    meta = TraceMeta(f"fixed-{context}", source="profile", has_arrivals=False)
    return make_trace(np.zeros(count), prompts, outputs, meta)


def one_batch(system: str, setup: Setup, context: int, batch: int) -> tuple[Outcome, dict[str, float]]:
    """Replay a batch that begins and ends together, and return its iterations' mean milliseconds too."""
    replayed = replay(requests(batch, context), system, replace(setup, max_num_seqs=batch), Workload())
    assert replayed.summary.requests.completed == batch
    names = ("duration", "model", "attention", "network", "host")
    done = replayed.outcome.iterations
    return replayed.outcome, {name: 1000 * float(done[f"{name}_s"].mean()) for name in names}


def fitting_all(trace: Trace, setups: Iterable[tuple[str, Setup]]) -> Trace:
    """Return the trace without requests that would not fit one of the systems."""
    return without_longer(trace, min(longest_fitting(system, setup) for system, setup in setups))


def throughput(trace: Trace, system: str, setup: Setup) -> float:
    """Return tokens a second of a saturated replay."""
    rate = replay(trace, system, setup, Workload()).summary.throughput_tokens_per_s
    assert rate is not None
    return rate
