"""One replay: from the user's choices to an outcome, simulated or live, with its summary and provenance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
from msgspec import structs

from laminabench.analysis.checksum import tokens_sha256
from laminabench.analysis.faults import faults_of, in_all
from laminabench.analysis.metrics import summarise
from laminabench.errors import UserError
from laminabench.runs.journal import Journal
from laminabench.runs.summary import FaultCost, Summary
from laminabench.runs.summary import Resumed as ResumedFacts
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Mode, Pipelining
from laminabench.systems.chaos import Wish, plan
from laminabench.systems.live import LiveSetup, check, free_bytes, kv_tokens, opened
from laminabench.systems.live_loop import Replay
from laminabench.systems.live_order import order_of
from laminabench.systems.live_records import Recorded, no_timeline, recorded
from laminabench.systems.live_story import Begun, Event, Resumed, Story, tell
from laminabench.systems.policy import priority_of
from laminabench.systems.prompts import Prompts
from laminabench.systems.registry import system
from laminabench.systems.setup import Modelled, Setup
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class Workload:
    """How a trace is offered, and what is expected of the answers."""

    mode: Mode = "saturate"
    concurrency: int | None = None
    policy: str = "fifo"
    slo_tbt_ms: float = 100.0


class Priced(Protocol):
    """What a deployment costs and draws, as far as it is known."""

    @property
    def usd_per_hour(self) -> float | None: ...

    @property
    def power_w(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came out, and everything needed to know what it means."""

    outcome: Outcome
    modelled: Modelled
    summary: Summary
    simulation_s: float


def replay(
    trace: Trace,
    system_name: str,
    setup: Setup,
    workload: Workload,
    *,
    record_s: tuple[float, float] = (0.0, 0.0),
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Replay on modelled hardware."""
    modelled = system(system_name).build(setup)
    offered = offered_of(trace, workload)
    start = time.perf_counter()
    outcome = simulate(trace, modelled.spec, offered, record_s=record_s, progress=progress)
    simulation_s = time.perf_counter() - start
    summary = summary_of(
        outcome, trace, workload, setup.deployment, shared_devices=modelled.spec.shared_devices
    )
    return Replayed(outcome, modelled, summary, simulation_s)


@dataclass(frozen=True, slots=True)
class ReplayedLive:
    """What came out of this machine, and what the engine's workers recorded of it."""

    outcome: Outcome
    facts: dict[str, Any]
    summary: Summary
    recorded: Recorded
    faults: list[FaultCost]
    resumed_s: list[float]  # when it was gone on with after an interruption, by its own clock
    tokens: list[list[int]] | None  # of each row, where prompts were computed
    why_rejected: str | None  # the first time


def replay_live(
    trace: Trace,
    setup: LiveSetup,
    workload: Workload,
    *,
    seed: int = 0,
    chaos: Sequence[Wish] = (),
    journal: Callable[[], Journal] | None = None,
    past: Sequence[Event] = (),
    progress: Callable[[int, int], None] = lambda requests, tokens: None,
) -> ReplayedLive:
    """Replay on the reference engine, here and now. However it ends, its workers have ended too.

    `past` is what a journal has of a replay that was interrupted: it is gone on with.
    """
    check(setup)
    blows = plan(chaos, setup.names(), int(trace.output_tokens.sum(dtype=np.int64)), seed)
    offered = offered_of(trace, workload)
    order = order_of(workload.policy, offered.priority, len(trace))
    story = Story(trace)
    for event in past:
        story.hear(event)
    if past:
        setup = _as_begun(setup, story)
    tokens = kv_tokens(setup, trace, free_bytes(setup))
    prompts = None if setup.prefill == "off" else Prompts(trace, seed, setup.model.vocab)
    with opened(setup, tokens, "fifo" if order.key is None else order.policy) as engine:
        # From here on there is something to go on with.
        written = journal() if journal else None
        now = Begun(engine.schedule.batches, engine.schedule.pipelining, tokens)
        tell(Resumed(story.at_s) if story.begun else now, story, written)
        run = Replay.on(
            engine, offered, order, story, prompts=prompts, blows=blows, journal=written, progress=progress
        )
        tables = run.run()
        found = recorded(engine, run.clock.began, story.before)
        run.note_faults()  # found when workers were asked for their records
        facts = setup.facts(engine)
    outcome = Outcome(
        requests=tables.requests(),
        iterations=found.with_times(tables.iterations(), story.faults),
        stints=tables.stints(),
        timeline=no_timeline(),
        replica_busy_s=found.replica_busy_s(),
        attention_busy_s=found.attention_busy_s(),
        end_s=tables.end_s,
        queue_empty_s=tables.end_s if tables.queue_empty_s is None else tables.queue_empty_s,
        peak_kv_tokens=story.peak_kv_tokens,
        kv_capacity_tokens=facts["kv_capacity_tokens"],
    )
    made = None if prompts is None else [story.tokens.get(row, []) for row in range(len(trace))]
    faults = faults_of(outcome, story.faults, story.strikes, workload.slo_tbt_ms)
    summary = structs.replace(
        summary_of(outcome, trace, workload, setup.deployment),
        schedule=found.schedule(),
        faults=faults,
        faults_in_all=in_all(faults, story.strikes, len(blows)),
        resumed=ResumedFacts(times=len(story.resumed_s), at_s=story.resumed_s),
        tokens_sha256=None if made is None else tokens_sha256(made),
    )
    return ReplayedLive(outcome, facts, summary, found, faults, story.resumed_s, made, story.why_refused)


def _as_begun(setup: LiveSetup, story: Story) -> LiveSetup:
    """With what the engine settled on when the replay began, so that the same requests fit."""
    begun = story.begun
    if begun is None:
        return setup
    pipelining = cast(Pipelining, begun.pipelining)
    return replace(setup, batches=begun.batches, pipelining=pipelining, kv_tokens=begun.kv_tokens)


def offered_of(trace: Trace, workload: Workload) -> Offered:
    """How a system gets the trace; a UserError where the flags contradict each other."""
    if workload.mode == "open" and not trace.meta.has_arrivals:
        raise UserError(
            "trace-no-arrivals",
            f"{trace.meta.name} has no arrival times; an open replay of it needs --request-rate",
        )
    if workload.mode == "closed" and workload.concurrency is None:
        raise UserError(
            "replay-concurrency",
            "a closed replay needs --concurrency: how many requests are in the system at once",
        )
    if workload.mode != "closed" and workload.concurrency is not None:
        raise UserError("replay-concurrency", f"--concurrency is for --mode closed, not {workload.mode}")
    return Offered(
        workload.mode,
        workload.concurrency or 0,
        priority_of(workload.policy, trace, workload.slo_tbt_ms / 1000),
    )


def summary_of(
    outcome: Outcome,
    trace: Trace,
    workload: Workload,
    deployment: Priced,
    *,
    shared_devices: bool = False,
) -> Summary:
    """The summary of what came out, under the workload's limit and at the deployment's price."""
    return summarise(
        outcome,
        trace,
        mode=workload.mode,
        slo_tbt_ms=workload.slo_tbt_ms,
        usd_per_hour=deployment.usd_per_hour,
        power_w=deployment.power_w,
        shared_devices=shared_devices,
    )
