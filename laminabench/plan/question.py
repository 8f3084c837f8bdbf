"""What a plan is asked: which requests, how fast, from which devices; and the candidates it chooses from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import deployments, system
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class Limits:
    usd_per_hour: float = float("inf")
    power_w: float = float("inf")  # rated
    devices: int | None = None

    def allows(self, deployment: Deployment) -> bool:
        """What nobody knows the watts of is within no limit of them."""
        watts = float("inf") if deployment.power_w is None else deployment.power_w
        few = self.devices is None or sum(part.count for part in deployment.parts) <= self.devices
        return few and watts <= self.power_w


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system on counted devices, and for the laminas how many batches take turns."""

    system: str
    deployment: Deployment
    batches: int = 1
    most_requests: int | None = None  # at once, on each board; the system's own limit, if None
    prompt_budget: int = 0  # tokens in an iteration of a batch; 0 where no prompts are computed

    @property
    def usd_per_hour(self) -> float:
        """Only deployments that have a price are candidates."""
        price = self.deployment.usd_per_hour
        assert price is not None
        return price

    def borrowed(self, costs: CostSet) -> tuple[str, ...]:
        """Those of its devices that nobody measured: they have another one's efficiencies, or are boards."""
        devices = {part.device.name: part.device for part in self.deployment.parts}
        return tuple(name for name, device in devices.items() if device.board or _borrows(device, costs))

    def __str__(self) -> str:
        turns = f", {self.batches} batches" if self.batches > 1 else ""
        limit = f", {self.most_requests} requests on each" if self.most_requests else ""
        budget = f", {self.prompt_budget} tokens an iteration" if self.prompt_budget else ""
        return f"{self.system} {self.deployment}{turns}{limit}{budget}"


def candidates(
    systems: Sequence[str],
    model: ModelShape,
    devices: Sequence[Device],
    limits: Limits = NO_LIMITS,
    prompt_budgets: Sequence[int] = (0,),
) -> Iterator[Candidate]:
    """All of them, whether or not the model fits, with as many batches as the system may have.

    Three batches rotate over two replicas, each of which holds all weights.
    """
    for name in systems:
        own = system(name)
        for batches in range(1, own.MOST_BATCHES + 1):
            found = deployments(
                name, model, devices, usd_per_hour=(0.0, limits.usd_per_hour), replicas=max(1, batches - 1)
            )
            for each in found:
                if limits.allows(each):
                    for most, budget in itertools.product(own.limits(each.model.device), prompt_budgets):
                        yield Candidate(name, each, batches, most, budget)


def _borrows(device: Device, costs: CostSet) -> bool:
    borrowed = costs.borrowed.get(device.name)
    return borrowed is not None and costs.measured_as(device) == borrowed.device


PlanMode = Literal["saturate", "open"]
PlanPrefill = Literal["off", "colocated"]
# In an open replay: how long 99 of 100 requests may wait to be let in.
SLO_QUEUEING_P99_S = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """Everything but the candidates; the same for all of them."""

    trace: Trace
    model: ModelShape
    costs: CostSet
    slo_tbt_p99_ms: float
    mode: PlanMode = "saturate"
    slo_queueing_p99_s: float = SLO_QUEUEING_P99_S
    network: Network | None = None  # each system's own, if None
    host_async: bool = False
    slo_ttft_ms: float | None = None  # for 99 of 100 requests
    prefill: PlanPrefill = "off"

    @property
    def prompts(self) -> bool:
        """Whether prompts are computed, and not there already."""
        return self.prefill != "off"

    def setup(self, candidate: Candidate, most_requests: int | None = None) -> Setup:
        """The candidate as `replay` takes it; its own limit of requests at once, if none is given."""
        return Setup(
            self.model,
            candidate.deployment,
            self.costs,
            self.network or parse_network(system(candidate.system).NETWORK),
            batches=candidate.batches,
            host_async=self.host_async,
            max_num_seqs=most_requests or candidate.most_requests,
            prompt_budget=candidate.prompt_budget,
            # As a replay has it unless it is told.
            admission="grow" if candidate.prompt_budget else "reserve",
            prefix_sharing=candidate.prompt_budget > 0,
        )
