"""How a trace's requests come to a deployment, and who of them goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laminabench.sim.spec import Mode

Priority = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Offered:
    """How the trace's requests come: docs/traces.md has the three modes."""

    mode: Mode = "saturate"
    concurrency: int = 0
    # Smaller goes first; called once when a request enters the queue. None is first come, first served.
    priority: Priority | None = None
