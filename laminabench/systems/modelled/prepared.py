"""A request as a virtual cluster: hardware that need not be there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import priced_devices
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.errors import UserError
from laminabench.json_safe import JsonObject
from laminabench.listener import Listener
from laminabench.request import CHOICES, ReplayRequest
from laminabench.runs.manifest import Backend
from laminabench.sim.simulate import simulate
from laminabench.sim.timeline import bubbles, lanes_of, two_iterations, write_timeline
from laminabench.systems.base import Past, Replayed, Window, Workload, summary_of
from laminabench.systems.modelled.setup import MEMORY_SHARE, Setup
from laminabench.systems.modelled.system import System
from laminabench.traces.table import Trace

MODEL = "llama3-70b"
# vLLM's default.
MAX_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """Ready to be simulated."""

    request: ReplayRequest
    setup: Setup
    system: System = field(repr=False)

    @property
    def backend(self) -> Backend:
        return "modelled"

    @property
    def costs(self) -> CostSet:
        return self.setup.costs

    @property
    def resumable(self) -> bool:
        return False

    @property
    def deployment(self) -> Deployment:
        return self.setup.deployment

    @property
    def model(self) -> ModelShape:
        return self.setup.model

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

    shared = built.spec.shared_devices
    return Replayed(
        outcome,
        built.facts,
        summary_of(outcome, trace, workload, setup.deployment, shared_devices=shared),
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
    name = request.model or MODEL
    shape = modelled(name)
    deployment = request.deployment or found.default_deployment(shape)
    network, costs = request.network or found.NETWORK, request.costs or DEFAULT_COSTS
    request = msgspec.structs.replace(
        request, model=name, deployment=deployment, network=network, costs=costs
    )
    basis = request.price_basis or found.PRICE_BASIS
    setup, note = found.settled(
        Setup(
            model=shape,
            deployment=parse_deployment(deployment, priced_devices(request.price, basis, request.power)),
            costs=load_costs(costs),
            network=parse_network(network),
            batches=None if request.batches == "auto" else request.batches,
            pipelining=request.pipelining,
            overlap=request.overlap is not False,
            partition=request.partition,
            stream_chunks=request.stream_chunks,
            overcommit=request.kv_overcommit or 1.0,
            pipeline_parallel=request.pipeline_parallel or 1,
            stream_along=request.stream_along,
            host_async=bool(request.host_async),
            admission=request.admission or ("grow" if budget else "reserve"),
            prefix_sharing=budget > 0 if request.prefix_sharing is None else request.prefix_sharing,
            prompt_budget=budget,
            max_num_seqs=request.max_num_seqs,
            block_tokens=request.block_size,
            memory_utilization=request.gpu_memory_utilization or MEMORY_SHARE,
            kv_capacity=request.kv_tokens,
            mapping=request.mapping,
            board=request.board,
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
    for name in ("max_batched_tokens", "slo_ttft_ms"):
        if getattr(request, name) is not None:
            raise UserError(
                "replay-flag-unused",
                f"{CHOICES[name].spelled} is for replays that compute prompts; add --prefill colocated",
            )
    return 0
