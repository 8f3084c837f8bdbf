"""The interface of every system: how a trace is offered to it, and what a replay returns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import msgspec

from laminabench.analysis.metrics import summarise
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import DeploymentFacts
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.manifest import Backend, Partial
from laminabench.runs.summary import Summary
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.sim.spec import Mode
from laminabench.systems.includes import Includes
from laminabench.systems.policy import priority_of
from laminabench.traces.table import Trace
from laminabench.util.errors import CodedError, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Window = tuple[float, float]
Made = TypeVar("Made", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Workload:
    """The way a trace is offered, and its latency limits."""

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
        """Return how requests come to the system; raise a UserError if choices contradict each other."""
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


class Named(Protocol):
    """Describe a model for a Run's manifest."""

    @property
    def name(self) -> str: ...

    def describe(self) -> JsonObject: ...


class Hardware(Protocol):
    """A deployment: what it costs and draws, as far as that is known; its text is its name."""

    @property
    def usd_per_hour(self) -> float | None: ...

    @property
    def power_w(self) -> float | None: ...

    def describe(self) -> DeploymentFacts: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, with what is needed to interpret it."""

    outcome: Outcome
    facts: JsonObject  # of the deployment, as it was built
    summary: Summary
    coefficients: Sequence[JsonObject] = ()  # what modelled times are computed from
    costs_set: str | None = None
    includes: Includes | None = None  # in modelled numbers
    simulation_s: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)  # logs and the like that the Run keeps, by name
    partial: Partial | None = None  # why it ended before the trace did, if it did
    why_rejected: str | None = None  # the first request that could never be served
    interrupted: bool = False  # and that was Ctrl-C
    problem: CodedError | None = None  # the numbers are not of what was requested
    tail: str = ""  # of a log, to be shown with the problem
    # Draws the work of one window into a file; None where nothing is known of it.
    draw: Callable[[Path, Window | None], JsonObject] | None = None


class Past(Protocol):
    """The events of an interrupted replay, and the journal in which it is resumed."""

    @property
    def events(self) -> Sequence[Any]: ...

    def open(self) -> Any:
        """Return the journal to write to once there is something to resume from, or None."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose choices are settled: everything that can be refused before the trace is loaded is."""

    request: ReplayRequest  # with the choices that the system made
    setup: Any
    backend: ClassVar[Backend] = "live"
    # Whether an interrupted replay can resume from its journal.
    resumable: ClassVar[bool] = False

    @property
    def costs(self) -> CostSet | None:
        """The cost set that modelled times are computed from."""
        return None

    @property
    def deployment(self) -> Hardware:
        deployment: Hardware = self.setup.deployment
        return deployment

    @property
    def model(self) -> Named:
        model: Named = self.setup.model
        return model

    def decided(self, trace: Trace, listener: Listener) -> Self:
        """Return the request with what is measured on this machine before the replay."""
        del trace, listener
        return self

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Live:
    """A live system: what it takes, like a modelled `System`, and the package that prepares it."""

    package: str
    TAKES: frozenset[str]
    ANYWAY: Mapping[str, object]
    WHY_NOT: str
    # What `calibrate` calls the device whose times it measures, and the options that it takes for that.
    CALIBRATED: str | None = None
    CALIBRATION_TAKES: frozenset[str] = frozenset()
    # It runs in a Python environment of its own, which may not be there.
    ENVIRONMENT: bool = False
    # All cores that it has are one device of a cost set; else each is.
    ONE_DEVICE: bool = False

    def twin(self, request: ReplayRequest) -> Mapping[str, str | int]:
        """Return the choices of the modelled replay that a live one of this request is compared with."""
        choices: Mapping[str, str | int] = importlib.import_module(f"{self.package}.prepared").twin(request)
        return choices

    @property
    def defaults(self) -> Mapping[str, object]:
        """The values of options that a request leaves open: those of its setup."""
        kind = importlib.import_module(f"{self.package}.setup").SETUP
        return {each.name: each.default for each in fields(kind) if each.default is not MISSING}

    def prepare(self, request: ReplayRequest, listener: Listener) -> Prepared:
        """Return the settled request; raise a UserError if this machine cannot replay it."""
        prepared: Prepared = importlib.import_module(f"{self.package}.prepared").prepare(request, listener)
        return prepared


def defaulted(request: ReplayRequest, **defaults: Any) -> ReplayRequest:
    """Return the request with these choices where it has made none."""
    missing = {name: value for name, value in defaults.items() if getattr(request, name) in (None, "")}
    return msgspec.structs.replace(request, **missing)


def settled(kind: type[Made], request: ReplayRequest, **chosen: Any) -> Made:
    """Return a setup with a request's choices and its own defaults for open ones; `chosen` overrides both."""
    choices = {each.name: getattr(request, each.name, None) for each in fields(kind)}
    return kind(**{name: value for name, value in choices.items() if value is not None} | chosen)


def summary_of(
    outcome: Outcome,
    trace: Trace,
    workload: Workload,
    deployment: Hardware,
    *,
    shared_devices: bool = False,
    prompts: bool = False,
    instances: int = 1,
) -> Summary:
    """Return the summary of an outcome, under the workload's limit and at the deployment's price."""
    return summarise(
        outcome,
        trace,
        mode=workload.mode,
        slo_tbt_ms=workload.slo_tbt_ms,
        slo_ttft_ms=workload.slo_ttft_ms,
        usd_per_hour=deployment.usd_per_hour,
        power_w=deployment.power_w,
        shared_devices=shared_devices,
        prompts=prompts,
        instances=instances,
    )
