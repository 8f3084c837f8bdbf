"""A request as a virtual cluster: hardware that need not be there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs, usual_costs
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import (
    Deployment,
    Instances,
    Workers,
    devices_named,
    parse_deployments,
    parse_workers,
)
from laminabench.catalog.eras import schedules_ahead_by_default
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import Device, priced_devices
from laminabench.catalog.host import parse_host, schedules_ahead, with_host
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.catalog.routing import read_routing
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.manifest import Backend
from laminabench.sim.simulate import simulate
from laminabench.sim.spec import Fleet
from laminabench.sim.timeline import bubbles, lanes_of, two_iterations, write_timeline
from laminabench.systems.base import (
    Hardware,
    Past,
    Prepared,
    Replayed,
    Window,
    Workload,
    defaulted,
    settled,
    summary_of,
)
from laminabench.systems.modelled.includes import includes_of
from laminabench.systems.modelled.setup import Modelled, Setup, with_prompts
from laminabench.systems.modelled.system import System
from laminabench.systems.router import (
    BUILT_IN,
    own_router,
    require_known,
    require_prefixes,
    require_several,
)
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener

MODEL = "llama3-70b"
# vLLM's default.
MAX_BATCHED_TOKENS = 2048
POOL = "pool:"
ROUTER, QUEUE = "round-robin", "each"


@dataclass(frozen=True, slots=True)
class PreparedModel(Prepared):
    """A simulation that is ready to start."""

    setup: Setup  # of the first instance
    system: System = field(repr=False)
    instances: tuple[Deployment, ...] = ()  # where there are several
    backend: ClassVar[Backend] = "modelled"

    @property
    def deployment(self) -> Hardware:
        return self.routed().hardware(self.setup)

    @property
    def costs(self) -> CostSet:
        return self.setup.costs

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Replay in virtual time; an interrupted replay starts again."""
        del past
        if self.request.prefix_sharing and trace.prefix_blocks is None:
            listener.note(f"{trace.meta.name} does not say which prompts share a prefix: nothing is shared")
        require_requests(trace, len(self.instances))
        require_prefixes(self.request.router or ROUTER, trace)
        with listener.progress("replaying", unit="requests") as progress:
            return replay_on(
                self.system,
                trace,
                self.setup,
                Workload.of(self.request),
                self.routed(),
                progress=lambda done: progress(done, len(trace)),
            )

    def routed(self) -> Routed:
        """Return how requests are routed."""
        iterations = self.request.iterations is not False
        return Routed(self.instances, self.request.router or ROUTER, self.request.queue or QUEUE, iterations)


@dataclass(frozen=True, slots=True)
class Routed:
    """Several deployments of one setup, and their router; without any, the setup's own deployment."""

    instances: tuple[Deployment, ...] = ()
    router: str = ROUTER
    queue: str = QUEUE
    iterations: bool = True

    def hardware(self, setup: Setup) -> Hardware:
        """Return all the hardware."""
        return Instances(self.instances) if len(self.instances) > 1 else setup.deployment

    def facts(self) -> JsonObject:
        """Return the facts that a Run keeps."""
        if len(self.instances) < 2:
            return {}
        return {"instances": len(self.instances), "router": self.router, "queue": self.queue}


def fleet_of(system: System, setup: Setup, routed: Routed) -> tuple[Fleet, Modelled]:
    """Return the fleet as the simulator takes it, and the first kind of deployment by itself."""
    kinds = Counter(routed.instances or (setup.deployment,))
    built = [system.build(replace(setup, deployment=each)) for each in kinds]
    # In the order in which they were named, equal ones together.
    specs = [
        replace(one.spec, copies=one.spec.copies * n) for one, n in zip(built, kinds.values(), strict=True)
    ]
    known = routed.router in BUILT_IN
    instances = sum(spec.copies for spec in specs)
    fleet = Fleet(
        tuple(specs),
        routed.router if known else own_router(routed.router, instances),
        routed.queue == "global",
        routed.iterations,
    )
    return fleet, built[0]


def require_requests(trace: Trace, instances: int) -> None:
    """Raise a UserError where some instances would have nothing to do."""
    if len(trace) < instances:
        raise UserError(
            "deployment-too-few-requests",
            f"--instances {instances} are more than the {len(trace)} requests of {trace.meta.name}; take "
            "fewer",
        )


def replay_on(
    system: System,
    trace: Trace,
    setup: Setup,
    workload: Workload,
    routed: Routed = Routed(),
    *,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Replay on modelled hardware."""
    fleet, built = fleet_of(system, setup, routed)
    offered = workload.offered(trace)
    start = time.perf_counter()
    outcome = simulate(trace, fleet, offered, progress=progress)
    simulation_s = time.perf_counter() - start

    def draw(path: Path, window: Window | None) -> JsonObject:
        """Replay once more, keeping every piece of work of one window."""
        first, last = window or two_iterations(outcome)
        first, last = min(first, outcome.end_s), min(last, outcome.end_s)
        again = simulate(trace, fleet, offered, record_s=(first, last))
        lanes = lanes_of(again, fleet)
        write_timeline(path, again, lanes)
        return {"window_s": [first, last], "bubbles": bubbles(again, lanes)}

    spec = built.spec
    return Replayed(
        outcome,
        {**built.facts, **routed.facts()},
        summary_of(
            outcome,
            trace,
            workload,
            routed.hardware(setup),
            shared_devices=spec.shared_devices,
            prompts=spec.prompts,
            instances=len(fleet.batches),
        ),
        coefficients=built.coefficients,
        costs_set=setup.costs.name,
        includes=includes_of([(system.NAME, setup)]),
        simulation_s=simulation_s,
        draw=draw,
    )


def prepare(request: ReplayRequest, system: System, listener: Listener) -> PreparedModel:
    """Look up the request's names; raise a UserError for unknown ones."""
    if request.batches == "auto":
        raise UserError(
            "replay-flag-unused", "--batches auto goes with --backend live; give a modelled replay a number"
        )
    if request.is_set("min_batch") and request.prefill not in (None, "off"):
        raise UserError(
            "replay-flag-unused",
            "--min-batch is for modelled replays that decode alone; leave it or --prefill out",
        )
    if request.iterations is False and (request.plot or request.timeline):
        raise UserError(
            "replay-flag-unused",
            f"{'--plot' if request.plot else '--timeline'} shows iterations, of which --no-iterations keeps "
            "none; leave one of the two out",
        )
    budget = prompt_budget(request)
    shape = modelled(request.model or MODEL)
    _require_parts(request, shape)
    request = defaulted(request, model=MODEL, deployment=system.default_deployment(shape))
    usual = usual_costs(shape, devices_named(str(request.deployment)))
    if request.costs is None and usual != DEFAULT_COSTS:
        listener.note(f"{usual} measured {request.deployment}; --costs names another set")
    costs = load_costs(request.costs or usual, request.attention_kernel)
    network = next(iter(costs.networks), system.NETWORK)
    request = defaulted(request, network=network, costs=usual)
    assert request.deployment
    assert request.network
    basis = request.price_basis or system.PRICE_BASIS
    router = request.router or ROUTER
    require_known(router)
    devices = priced_devices(request.price, basis, request.power, known_devices([costs]))
    prefill = prefill_workers(request, devices)
    deployments = parse_deployments(request.deployment, request.instances, devices)
    require_several(request, sum(map(system.instances_of, deployments)))
    chosen = settled(
        Setup,
        request,
        model=shape,
        deployment=replace(deployments[0], prefill=prefill),
        costs=with_host(costs, parse_host(request.host) if request.host else None),
        network=parse_network(request.network, costs.networks),
    )
    if request.host_async is None:
        ahead = schedules_ahead(chosen.costs.host, schedules_ahead_by_default(costs.name))
        chosen = replace(chosen, host_async=ahead)
    if request.routing not in (None, "skewed", "uniform"):
        chosen = replace(chosen, routing=read_routing(Path(str(request.routing))))
    setup, note = system.settled(
        with_prompts(chosen, budget, admission=request.admission, prefix_sharing=request.prefix_sharing)
    )
    # A price that was settled is every instance's.
    several = [
        setup.deployment if each == deployments[0] else replace(each, prefill=prefill) for each in deployments
    ]
    prepared = PreparedModel(request, setup, system, tuple(several))
    for text in filter(None, (note, Instances(tuple(several)).price_note)):
        listener.note(text)
    return prepared


def _require_parts(request: ReplayRequest, model: ModelShape) -> None:
    """Raise a UserError for a choice about a part that the model does not have."""
    for flag, chosen, part in (
        ("--routing", request.routing, model.experts),
        ("--absorb", request.absorb, model.latent),
    ):
        if chosen is not None and part is None:
            what = "mixtures of experts" if flag == "--routing" else "models with latent attention (MLA)"
            raise UserError(
                "replay-flag-unused", f"{flag} is for {what}, which {model.name} is not; leave it out"
            )


def prompt_budget(request: ReplayRequest) -> int:
    """Return the most tokens of an iteration that computes prompts; 0 where they are there already."""
    prefill = request.prefill or "off"
    if prefill == "off":
        return 0
    if prefill == "colocated" or str(prefill).startswith(POOL):
        return request.max_batched_tokens or MAX_BATCHED_TOKENS
    raise UserError(
        "replay-prefill",
        f"--prefill {prefill} goes with --backend live; a modelled replay takes off, colocated or "
        "pool:2xh100",
    )


def prefill_workers(request: ReplayRequest, devices: Mapping[str, Device]) -> Workers | None:
    """Return the devices of `--prefill pool:4xh100`."""
    text = str(request.prefill)
    if not text.startswith(POOL):
        return None
    try:
        return parse_workers(text.removeprefix(POOL), devices)
    except UserError as error:
        raise error.within(f"--prefill {text}") from None
