"""A comparison's settings: the choices that hold for every model, trace and cost set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers, parse_deployments
from laminabench.catalog.eras import Era
from laminabench.catalog.hardware import Device
from laminabench.catalog.host import schedules_ahead, with_host
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, network_of
from laminabench.sim.spec import Admission, Spec
from laminabench.systems.base import Hardware
from laminabench.systems.modelled.prepared import QUEUE, ROUTER, Routed
from laminabench.systems.modelled.setup import Setup, with_prompts
from laminabench.systems.registry import system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.workflows.replay import Workload

Amount = Literal["cost", "power"]
# The H2M2 paper's chips have arithmetic for nothing else.
BOARD_TYPE = "int8"
# Before the types of experts and of KV, where these differ from that of the other weights.
EXPERTS_IN, KV_IN = ", experts in ", ", KV in "


@dataclass(frozen=True, slots=True)
class Equal:
    """The condition that deployments have about the same price or rated power."""

    tolerance: float = 0.1
    # Kinds to choose from; those of the systems' deployments where there are none.
    devices: tuple[Device, ...] = ()
    amount: Amount = "cost"

    def of(self, name: str, deployment: Hardware) -> float:
        """Return dollars an hour, or watts; a UserError if unknown or zero."""
        return price_of(name, deployment) if self.amount == "cost" else power_of(name, deployment)

    def allows(self, deployment: Hardware, reference: float) -> bool:
        """Return whether it is about equal to the reference; an unknown amount is not."""
        own = self.known(deployment)
        return own is not None and abs(own - reference) <= self.tolerance * reference

    def known(self, deployment: Hardware) -> float | None:
        """Return dollars an hour, or watts; None if unknown."""
        return deployment.usd_per_hour if self.amount == "cost" else deployment.power_w

    def text(self, amount: float) -> str:
        return f"${amount:.2f} an hour" if self.amount == "cost" else f"{amount:,.0f} W"


@dataclass(frozen=True, slots=True)
class Deployed:
    """A system on one or several instances."""

    setup: Setup  # of the first
    routed: Routed

    @property
    def hardware(self) -> Hardware:
        """Return the hardware of all instances."""
        return self.routed.hardware(self.setup)

    @property
    def kinds(self) -> list[Setup]:
        """Return a setup for every distinct deployment."""
        return [replace(self.setup, deployment=each) for each in dict.fromkeys(self.routed.instances)]

    @property
    def boards(self) -> int:
        """The number of boards, each with a full model; 0 for other devices."""
        return sum(each.model.count for each in self.routed.instances) if on_boards(self.setup) else 0


class Host(NamedTuple):
    """The time that a host adds to an iteration."""

    per_step_ms: float
    per_request_us: float
    behind: bool  # the devices, as far as it is done before these are

    def to(self, slower: Host) -> str:
        """Describe the range from this host to a slower one, which may be the same."""
        if not (slower.per_step_ms or slower.per_request_us):
            return "takes nothing"
        if self.behind:
            return "works behind the devices"
        steps = " to ".join(dict.fromkeys(f"{each.per_step_ms:g}" for each in (self, slower)))
        each = f" and {slower.per_request_us:g} us a request" if slower.per_request_us else ""
        return f"adds {steps} ms a step{each}"


@dataclass(frozen=True, slots=True)
class Reading:
    """The place of a comparison in an era's range."""

    era: Era
    host: str = ""  # of the era's system, where there is a range
    same_host: bool = False  # everyone's host is as slow

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.era.name, self.host))) + " everywhere" * self.same_host


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """The options that all cells have in common; the first system's price or power is the reference."""

    systems: tuple[str, ...]
    given: Mapping[str, tuple[Deployment, ...]] = field(default_factory=dict)  # in place of the papers'
    instances: int | None = None  # of each paper's
    router: str = ROUTER  # of systems that have several
    queue: str = QUEUE
    catalogue: Mapping[str, Device] | None = None  # with the user's prices
    network: Network | None = None  # each paper's own, if None
    hosts: Mapping[str, HostCost] = field(default_factory=dict)  # the cost set's, where none is given
    host_async: tuple[str, ...] = ()  # whose host works behind the devices
    # The era's or each one's own, where none is given.
    max_num_seqs: Mapping[str, int] = field(default_factory=dict)
    admission: Admission | None = None  # default: that of prompts
    prompt_budget: int = 0  # tokens in an iteration; 0 where no prompts are computed
    prefill: Workers | None = None  # devices for prompts, which every deployment gets
    workload: Workload = field(default_factory=Workload)
    equal: Equal | None = None
    reading: Reading | None = None  # of an era; as the user says, if None
    load: str = ""  # how requests come, where a comparison has two ways

    @property
    def several(self) -> bool:
        """Return whether a system has several instances."""
        return (self.instances or 1) > 1 or any(len(each) > 1 for each in self.given.values())

    def deployed(self, model: ModelShape, costs: CostSet) -> dict[str, Deployed]:
        """Return every system on the given deployment, or on its paper's for this model."""
        return {name: self.on(name, model, costs, self._instances(name, model)) for name in self.systems}

    def on(self, name: str, model: ModelShape, costs: CostSet, instances: tuple[Deployment, ...]) -> Deployed:
        """Return the system on instances that decode, each with the devices for prompts added."""
        each = tuple(replace(one, prefill=self.prefill) for one in instances)
        own = with_host(costs, self.hosts.get(name))
        setup = Setup(
            model,
            each[0],
            own,
            self.network or network_of(costs.networks, system(name).NETWORK),
            host_async=schedules_ahead(own.host, name in self.host_async),
            max_num_seqs=self.max_num_seqs.get(name),
        )
        setup = with_prompts(setup, self.prompt_budget, admission=self.admission)
        if self.reading and self.reading.era.system == name and not setup.max_num_seqs:
            setup = replace(setup, max_num_seqs=limit_in(self.reading.era, setup))
        return Deployed(setup, Routed(each, self.router, self.queue))

    def _instances(self, name: str, model: ModelShape) -> tuple[Deployment, ...]:
        return self.given.get(name) or parse_deployments(
            system(name).default_deployment(model), self.instances, self.catalogue
        )


def limit_in(era: Era, setup: Setup) -> int:
    """Return the most requests at once of the era's system, over all its engines.

    An engine that computes prompts, too, has no more than an iteration has tokens for.
    """
    deployment = setup.deployment
    each = era.limit_on(deployment.model.device)
    if setup.prompt_budget and not deployment.prefill:
        each = min(each, setup.prompt_budget)
    return each * system(era.system).engines(deployment)


def on_boards(setup: Setup) -> bool:
    """Return whether it is deployed on boards, which hold a full model each."""
    return setup.deployment.model.device.board is not None


def storage_types(setup: Setup) -> str:
    """Return the types of weights and KV: a board's own, else the model's; `types_in` parses it."""
    model = setup.model
    if on_boards(setup):
        return BOARD_TYPE
    experts = "" if model.expert_dtype == model.dtype else f"{EXPERTS_IN}{model.expert_dtype}"
    return model.dtype + experts + ("" if model.dtype == model.kv_dtype else f"{KV_IN}{model.kv_dtype}")


def host_of(setup: Setup) -> Host:
    """Return the time that its host adds to an iteration."""
    cost = setup.costs.host
    return Host(1000 * cost.per_step_s, 1e6 * cost.per_request_s, setup.host_async)


def types_in(text: str) -> tuple[set[str], str]:
    """Parse the types of weights, and of KV, from the text of `held_in`."""
    weights, _, kv = text.partition(KV_IN)
    types = weights.split(EXPERTS_IN)
    return set(types), kv or types[0]


def price_of(name: str, deployment: Hardware) -> float:
    """Return the hourly price of a deployment; a UserError if unknown or zero."""
    usd = deployment.usd_per_hour
    if not usd:
        raise UserError(
            "deployment-no-price",
            f"{deployment} of {name} has no price to compare by; --price DEVICE=USD gives one",
        )
    return usd


def power_of(name: str, deployment: Hardware) -> float:
    """Return the rated power of a deployment in watts; a UserError if unknown or zero."""
    watts = deployment.power_w
    if not watts:
        raise UserError(
            "deployment-no-power",
            f"{deployment} of {name} has no rated power to compare by; --power DEVICE=WATTS gives one",
        )
    return watts


def longest_fitting(name: str, setup: Setup) -> int:
    """Return the longest request that fits, in tokens; a UserError if the model does not fit."""
    return _longest(system(name).build(setup).spec)  # with a block to spare


def _longest(spec: Spec) -> int:
    return spec.tokens_per_pool // spec.block_tokens * spec.block_tokens - spec.block_tokens


def fitting_everywhere(trace: Trace, chosen: Mapping[str, Deployed]) -> Trace:
    """Return the requests that fit on every instance, and whose prompts fit the engines that compute them."""
    specs = [system(name).build(setup).spec for name, each in chosen.items() for setup in each.kinds]
    fitting = without_longer(trace, min(map(_longest, specs)))
    engines = [_longest(spec.pool.engine) for spec in specs if spec.pool]
    # An engine has a prompt and its first token.
    short = np.flatnonzero(fitting.prompt_tokens < min(engines, default=np.inf))
    return fitting if len(short) == len(fitting) else fitting.take(short)


def least_room(chosen: Mapping[str, Deployed]) -> str:
    """Describe the deployment that limits how long requests may be, and its room."""
    longest = {
        f"{name} {setup.deployment}": longest_fitting(name, setup)
        for name, each in chosen.items()
        for setup in each.kinds
    }
    least = min(longest, key=lambda name: longest[name])
    return f"{least} has room for {longest[least]:,} tokens of KV"


def without_longer(trace: Trace, longest: int) -> Trace:
    """Return the requests with at most so many tokens in total."""
    lengths = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    fitting = np.flatnonzero(lengths <= longest)
    return trace if len(fitting) == len(trace) else trace.take(fitting)
