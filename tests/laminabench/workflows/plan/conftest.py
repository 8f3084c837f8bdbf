"""Traces drawn by chance, and questions about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.workflows.plan.question import Question

DrawTrace = Callable[..., Trace]
Pose = Callable[..., Question]


@pytest.fixture(scope="session")
def draw_trace() -> DrawTrace:
    """Lengths from a log-normal distribution as wide as `spread`, Poisson arrivals."""

    def draw(
        seed: int,
        requests: int = 300,
        prompt: float = 2000,
        output: float = 120,
        spread: float = 0.8,
        rate: float = 5.0,
    ) -> Trace:
        random = np.random.default_rng(seed)

        def lengths(median: float) -> np.ndarray:
            drawn = random.lognormal(np.log(median), spread, requests)
            return np.clip(np.rint(drawn), 1, 20_000).astype(np.int32)

        arrival_s = np.cumsum(random.exponential(1 / rate, requests))
        return make_trace(arrival_s, lengths(prompt), lengths(output), TraceMeta("drawn"))

    return draw


@pytest.fixture(scope="session")
def pose() -> Pose:
    """A question of a trace; the catalogue's names for what it is about."""

    def requested(trace: Trace, slo_ms: float = 100.0, **more: Any) -> Question:
        costs = load_costs(more.pop("costs", "vllm-0.14"))
        return Question(trace, model(more.pop("model", "llama3-70b")), costs, slo_ms, **more)

    return requested
