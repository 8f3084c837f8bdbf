"""A plan's question: requests, limits and devices; and the candidates it chooses from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Instances, Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.layout import NODE_DEVICES
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, network_of
from laminabench.requests.plan import PlanMode, PlanPrefill
from laminabench.systems.modelled.setup import Setup, with_prompts
from laminabench.systems.registry import deployments, system
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class Limits:
    usd_per_hour: float = float("inf")
    power_w: float = float("inf")  # rated
    devices: int | None = None

    def most(self, deployment: Deployment) -> int:
        """Return the most instances within the limits. Unknown watts are within no limit of power."""
        watts = float("inf") if deployment.power_w is None else deployment.power_w
        counts = [(self.usd_per_hour, deployment.usd_per_hour or 0.0), (self.power_w, watts)]
        if self.devices is not None:
            counts.append((self.devices, sum(part.count for part in deployment.parts)))
        several = [limit / own for limit, own in counts if own and limit < float("inf")]
        return int(min([MOST_INSTANCES, *several]))


NO_LIMITS = Limits()
# Of one deployment; a plan of more is one of a part of the load.
MOST_INSTANCES = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system on counted devices, and for the laminas how many batches take turns."""

    system: str
    deployment: Deployment
    batches: int = 1
    most_requests: int | None = None  # at once, on each board; the system's own limit, if None
    prompt_budget: int = 0  # tokens in an iteration of a batch; 0 where no prompts are computed
    instances: int = 1  # requests are assigned to them in turn

    @property
    def usd_per_hour(self) -> float:
        """The price of all instances; a candidate always has one."""
        price = self.deployment.usd_per_hour
        assert price is not None
        return self.instances * price

    @property
    def hardware(self) -> str:
        """All of it."""
        return str(self.deployment if self.instances == 1 else Instances((self.deployment,) * self.instances))

    @property
    def devices(self) -> dict[str, int]:
        """The devices of all instances by kind, from which costs at any prices follow."""
        counts: dict[str, int] = {}
        for part in self.deployment.parts:
            counts[part.device.name] = counts.get(part.device.name, 0) + self.instances * part.count
        return counts

    @property
    def without_prompts(self) -> Candidate:
        """The candidate with prompts' KV present, which takes no devices for them."""
        deployment = replace(self.deployment, prefill=None)
        return replace(self, deployment=deployment, prompt_budget=0)

    def of_prompts(self) -> dict[str, object]:
        """Return how it computes prompts, for --json."""
        if not self.prompt_budget:
            return {}
        pool = self.deployment.prefill
        return {
            "prefill": "colocated" if pool is None else f"pool:{pool}",
            "max_batched_tokens": self.prompt_budget,
            "instances": self.instances,
        }

    def borrowed(self, costs: CostSet) -> tuple[str, ...]:
        """Return its unmeasured devices: boards, and those with another device's efficiencies or times."""
        devices = {part.device.name: part.device for part in self.deployment.parts}
        return tuple(name for name, device in devices.items() if device.board or _borrows(device, costs))

    def __str__(self) -> str:
        turns = f", {self.batches} batches" if self.batches > 1 else ""
        limit = f", {self.most_requests} requests on each" if self.most_requests else ""
        budget = f", {self.prompt_budget} tokens an iteration" if self.prompt_budget else ""
        return f"{self.system} {self.hardware}{turns}{limit}{budget}"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Ways to compute prompts: colocated with decoding, or by a pool; else their KV is present."""

    colocated: tuple[int, ...] = ()  # most tokens in an iteration
    pool: tuple[int, ...] = ()
    instances: int = 1  # the most that are searched

    def ways(
        self, deployment: Deployment, model: ModelShape, devices: Sequence[Device]
    ) -> Iterator[tuple[Deployment, int]]:
        """Yield the deployment with each way to compute prompts, and the tokens of an iteration."""
        if not self.colocated and not self.pool:
            yield deployment, 0
        for budget in self.colocated:
            yield deployment, budget
        degrees = model.tp_degrees(NODE_DEVICES)
        counts = sorted({degree * engines for degree in degrees for engines in MOST_ENGINES})
        kinds = [each for each in devices if not each.board and each.price_usd_per_hour is not None]
        for device, count, budget in itertools.product(kinds, counts, self.pool):
            yield replace(deployment, prefill=Workers(device, count)), budget


NO_PROMPTS = Prompts()
# Engines of a pool that are tried, each over as many devices as tensor parallelism goes.
MOST_ENGINES = (1, 2, 4)


def candidates(
    systems: Sequence[str],
    model: ModelShape,
    devices: Sequence[Device],
    limits: Limits = NO_LIMITS,
    prompts: Prompts = NO_PROMPTS,
) -> Iterator[Candidate]:
    """Yield all candidates, whether or not the model fits, with as many batches as the system may have.

    Three batches rotate over two replicas, each of which holds all weights.
    """
    for name in systems:
        own = system(name)
        for batches in range(1, own.MOST_BATCHES + 1):
            deployed = deployments(
                name, model, devices, usd_per_hour=(0.0, limits.usd_per_hour), replicas=max(1, batches - 1)
            )
            for each in deployed:
                for most in own.limits(each.model.device):
                    for deployment, budget in prompts.ways(each, model, devices):
                        several = limits.most(deployment)
                        for instances in range(1, min(several, prompts.instances) + 1):
                            yield Candidate(name, deployment, batches, most, budget, instances)


def _borrows(device: Device, costs: CostSet) -> bool:
    borrowed = costs.borrowed.get(device.name)
    lent = borrowed is not None and costs.measured_as(device) == borrowed.device
    return lent or costs.scaled(device.name)


# In an open replay: how long 99 of 100 requests may wait to be let in.
SLO_QUEUEING_P99_S = 1.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of 99th percentiles of an open replay, in seconds."""

    tbt_s: float = math.inf
    ttft_s: float = math.inf
    queueing_s: float = math.inf

    def times(self, factor: float) -> Slo:
        return Slo(factor * self.tbt_s, factor * self.ttft_s, factor * self.queueing_s)


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

    @property
    def slo(self) -> Slo:
        ttft_ms = math.inf if self.slo_ttft_ms is None else self.slo_ttft_ms
        return Slo(self.slo_tbt_p99_ms / 1000, ttft_ms / 1000, self.slo_queueing_p99_s)

    def setup(self, candidate: Candidate, most_requests: int | None = None) -> Setup:
        """Return the candidate's setup for `replay`; its own limit of requests at once by default."""
        setup = Setup(
            self.model,
            candidate.deployment,
            self.costs,
            self.network or network_of(self.costs.networks, system(candidate.system).NETWORK),
            batches=candidate.batches,
            host_async=self.host_async,
            max_num_seqs=most_requests or candidate.most_requests,
        )
        return with_prompts(setup, candidate.prompt_budget)
