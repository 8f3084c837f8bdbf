"""What every system has in common: how a trace is offered to it, and what comes of a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from laminabench.analysis.metrics import summarise
from laminabench.catalog.costs import CostSet
from laminabench.errors import CodedError, UserError
from laminabench.json_safe import JsonObject
from laminabench.listener import Listener
from laminabench.request import ReplayRequest
from laminabench.runs.manifest import Backend, Partial
from laminabench.runs.summary import Summary
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.sim.spec import Mode
from laminabench.systems.policy import priority_of
from laminabench.traces.table import Trace

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """How a trace is offered, and what is expected of the answers."""

    mode: Mode = "saturate"
    concurrency: int | None = None
    policy: str = "fifo"
    slo_tbt_ms: float = 100.0
    slo_ttft_ms: float | None = None

    @classmethod
    def of(cls, request: ReplayRequest) -> Workload:
        return cls(
            request.mode,
            request.concurrency,
            request.policy or "fifo",
            request.slo_tbt_ms,
            request.slo_ttft_ms,
        )

    def offered(self, trace: Trace) -> Offered:
        """How a system gets the trace; a UserError where choices contradict each other."""
        if self.mode == "open" and not trace.meta.has_arrivals:
            raise UserError(
                "trace-no-arrivals",
                f"{trace.meta.name} has no arrival times; an open replay of it needs --request-rate",
            )
        if self.mode == "closed" and self.concurrency is None:
            raise UserError(
                "replay-concurrency",
                "a closed replay needs --concurrency: how many requests are in the system at once",
            )
        if self.mode != "closed" and self.concurrency is not None:
            raise UserError("replay-concurrency", f"--concurrency is for --mode closed, not {self.mode}")
        return Offered(
            self.mode,
            self.concurrency or 0,
            priority_of(self.policy, trace, self.slo_tbt_ms / 1000),
        )


class Described(Protocol):
    """A deployment or a model, as a Run's manifest has it."""

    def describe(self) -> dict[str, Any]: ...


class Hardware(Described, Protocol):
    """A deployment: what it costs and draws, as far as that is known; its text is its name."""

    @property
    def usd_per_hour(self) -> float | None: ...

    @property
    def power_w(self) -> float | None: ...


class Named(Described, Protocol):
    """A model."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay, and everything needed to know what it means."""

    outcome: Outcome
    facts: JsonObject  # of the deployment, as it was built
    summary: Summary
    coefficients: Sequence[JsonObject] = ()  # what modelled times are computed from
    costs_set: str | None = None
    simulation_s: float | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)  # what a picture over time marks
    beside: Mapping[str, bytes] = field(default_factory=dict)  # files that the Run keeps, by name
    partial: Partial | None = None  # why it ended before the trace did, if it did
    why_rejected: str | None = None  # the first request that could never be served
    interrupted: bool = False  # and that was Ctrl-C
    problem: CodedError | None = None  # the numbers are of something else than was asked for
    tail: str = ""  # of a log, to be shown with the problem
    # Draws the work of one window into a file; None where nothing is known of it.
    draw: Callable[[Path, Window | None], JsonObject] | None = None


class Prepared(Protocol):
    """A request whose choices are settled: everything that can be refused before the trace is loaded is."""

    @property
    def backend(self) -> Backend: ...

    @property
    def costs(self) -> CostSet | None:
        """What modelled times are computed from."""

    @property
    def resumable(self) -> bool:
        """Whether it can be gone on with from a journal when it was interrupted."""

    @property
    def request(self) -> ReplayRequest:
        """With the choices that the system made."""

    @property
    def deployment(self) -> Hardware: ...

    @property
    def model(self) -> Named: ...

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed: ...


class Past(Protocol):
    """What a journal has of a replay that was interrupted, and where it is gone on with."""

    @property
    def events(self) -> Sequence[Any]: ...

    def open(self) -> Any:
        """The journal to write to, from the moment that there is something to go on with; or None."""


def summary_of(
    outcome: Outcome, trace: Trace, workload: Workload, deployment: Hardware, *, shared_devices: bool = False
) -> Summary:
    """The summary of what came out, under the workload's limit and at the deployment's price."""
    return summarise(
        outcome,
        trace,
        mode=workload.mode,
        slo_tbt_ms=workload.slo_tbt_ms,
        slo_ttft_ms=workload.slo_ttft_ms,
        usd_per_hour=deployment.usd_per_hour,
        power_w=deployment.power_w,
        shared_devices=shared_devices,
    )
