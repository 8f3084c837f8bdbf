"""A request as a virtual cluster: hardware that need not be there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import priced_devices
from laminabench.catalog.network import parse_network
from laminabench.errors import UserError
from laminabench.json_safe import JsonObject
from laminabench.listener import Listener
from laminabench.request import ReplayRequest
from laminabench.runs.manifest import Backend
from laminabench.sim.simulate import simulate
from laminabench.sim.timeline import bubbles, lanes_of, two_iterations, write_timeline
from laminabench.systems.base import (
    Past,
    Prepared,
    Replayed,
    Window,
    Workload,
    defaulted,
    settled,
    summary_of,
)
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.modelled.system import System
from laminabench.traces.table import Trace

MODEL = "llama3-70b"
# vLLM's default.
MAX_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class PreparedModel(Prepared):
    """Ready to be simulated."""

    setup: Setup
    system: System = field(repr=False)
    backend: ClassVar[Backend] = "modelled"

    @property
    def costs(self) -> CostSet:
        return self.setup.costs

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """In virtual time; what was interrupted is begun anew."""
        del past
        if self.request.prefix_sharing and trace.prefix_blocks is None:
            listener.note(f"{trace.meta.name} does not say which prompts share a prefix: nothing is shared")
        with listener.progress("replaying", unit="requests") as progress:
            return replay_on(
                self.system,
                trace,
                self.setup,
                Workload.of(self.request),
                progress=lambda done: progress(done, len(trace)),
            )


def replay_on(
    system: System,
    trace: Trace,
    setup: Setup,
    workload: Workload,
    *,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Replay on modelled hardware."""
    built = system.build(setup)
    offered = workload.offered(trace)
    start = time.perf_counter()
    outcome = simulate(trace, built.spec, offered, progress=progress)
    simulation_s = time.perf_counter() - start

    def draw(path: Path, window: Window | None) -> JsonObject:
        """Replay once more, keeping every piece of work of one window."""
        first, last = window or two_iterations(outcome)
        first, last = min(first, outcome.end_s), min(last, outcome.end_s)
        again = simulate(trace, built.spec, offered, record_s=(first, last))
        lanes = lanes_of(again, built.spec)
        write_timeline(path, again, lanes)
        return {"window_s": [first, last], "bubbles": bubbles(again, lanes)}

    spec, deployment = built.spec, setup.deployment
    known = {"shared_devices": spec.shared_devices, "prompts": spec.prompt_budget > 0}
    return Replayed(
        outcome,
        built.facts,
        summary_of(outcome, trace, workload, deployment, **known),
        coefficients=built.coefficients,
        costs_set=setup.costs.name,
        simulation_s=simulation_s,
        draw=draw,
    )


def prepare(request: ReplayRequest, found: System, listener: Listener) -> PreparedModel:
    """The request's names looked up; a UserError for what there is not."""
    if request.batches == "auto":
        raise UserError(
            "replay-flag-unused", "--batches auto goes with --backend live; give a modelled replay a number"
        )
    budget = prompt_budget(request)
    shape = modelled(request.model or MODEL)
    request = defaulted(
        request,
        model=MODEL,
        deployment=found.default_deployment(shape),
        network=found.NETWORK,
        costs=DEFAULT_COSTS,
    )
    assert request.deployment
    assert request.network
    assert request.costs
    basis = request.price_basis or found.PRICE_BASIS
    called = {
        "overcommit": "kv_overcommit",
        "block_tokens": "block_size",
        "memory_utilization": "gpu_memory_utilization",
        "kv_capacity": "kv_tokens",
    }
    setup, note = found.settled(
        settled(
            Setup,
            request,
            called,
            model=shape,
            deployment=parse_deployment(
                request.deployment, priced_devices(request.price, basis, request.power)
            ),
            costs=load_costs(request.costs),
            network=parse_network(request.network),
            admission=request.admission or ("grow" if budget else "reserve"),
            prefix_sharing=budget > 0 if request.prefix_sharing is None else request.prefix_sharing,
            prompt_budget=budget,
        )
    )
    for each in filter(None, (note, setup.deployment.price_note)):
        listener.note(each)
    return PreparedModel(request, setup, found)


def prompt_budget(request: ReplayRequest) -> int:
    """Most tokens that a batch computes in an iteration; 0 where prompts are there already."""
    if request.prefill == "colocated":
        return request.max_batched_tokens or MAX_BATCHED_TOKENS
    if request.prefill not in (None, "off"):
        raise UserError(
            "replay-prefill",
            f"--prefill {request.prefill} goes with --backend live; a modelled replay takes off or colocated",
        )
    return 0
