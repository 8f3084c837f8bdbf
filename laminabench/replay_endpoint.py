"""One replay against a server: from the user's choices to an outcome with its summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laminabench.replay import Workload, offered_of, summary_of
from laminabench.runs.manifest import Partial
from laminabench.runs.summary import Summary
from laminabench.sim.outcome import Outcome
from laminabench.systems.endpoint.replaying import replay
from laminabench.systems.endpoint.setup import EndpointSetup
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class ReplayedEndpoint:
    """What a client saw, and what it found out about the server."""

    outcome: Outcome
    facts: dict[str, Any]
    summary: Summary
    notes: list[str]
    partial: Partial | None
    interrupted: bool


def replay_endpoint(
    trace: Trace,
    setup: EndpointSetup,
    workload: Workload,
    *,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda requests, tokens: None,
) -> ReplayedEndpoint:
    """Offer the trace to the server, here and now."""
    seen = replay(trace, setup, offered_of(trace, workload), seed=seed, tell=tell)
    summary = summary_of(seen.outcome, trace, workload, setup.deployment)
    return ReplayedEndpoint(seen.outcome, seen.facts, summary, seen.notes, seen.partial, seen.interrupted)
