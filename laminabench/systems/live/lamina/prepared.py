"""A replay on the reference engine: a request settled, replayed by real clocks, and what workers recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self, cast

import msgspec
import numpy as np

from laminabench.analysis.checksum import tokens_sha256
from laminabench.analysis.faults import faults_of, in_all
from laminabench.catalog.deployment import AUTO, Deployment, Instances, parse_deployments
from laminabench.catalog.hardware import priced_devices
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.summary import Resumed as ResumedFacts
from laminabench.sim.spec import Pipelining
from laminabench.sim.timeline import bubbles, write_timeline
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
from laminabench.systems.live.lamina import fastest, starting
from laminabench.systems.live.lamina import setup as engine_setup
from laminabench.systems.live.lamina.faults import FaultSpec, parse, plan
from laminabench.systems.live.lamina.log import Begun, ReplayLog, Resumed, record
from laminabench.systems.live.lamina.loop import Replay, order_of
from laminabench.systems.live.lamina.records import PROCESS, OwnTimes, Recorded, recorded
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.lamina.starting import WarmUp
from laminabench.systems.live.local import MAX_SEQUENCES, MODEL, looked_up
from laminabench.systems.live.prompts import prompt_of
from laminabench.systems.live.recent import expected_of, watched
from laminabench.systems.router import require_prefixes, require_several
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener


@dataclass(frozen=True, slots=True)
class PreparedEngine(Prepared):
    """Ready to be started."""

    setup: LiveSetup
    faults: Sequence[FaultSpec] = ()
    choice: fastest.Choice | None = None  # of --deployment auto
    resumable: ClassVar[bool] = True

    @property
    def deployment(self) -> Deployment | Instances:
        return self.setup.hardware

    @property
    def slowdown(self) -> float:
        """Seconds that one of the replay takes."""
        return 1.0

    @property
    def process(self) -> str:
        """Of a timeline's lanes."""
        return PROCESS

    def told(self, records: Recorded | OwnTimes) -> JsonObject:
        """What only a replay that is over can tell of itself."""
        del records
        return {}

    def decided(self, trace: Trace, listener: Listener) -> Self:
        """With the layout that this machine is fastest with, if that was asked for."""
        if not self.setup.auto:
            return self
        choice = fastest.chosen(self.setup, self.request, trace, listener)
        request = msgspec.structs.replace(self.request, deployment=choice.deployment)
        return replace(self, request=request, setup=replace(choice.setup, auto=False), choice=choice)

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Here and now; what a journal has is gone on with."""
        setup = self.setup
        if setup.on_gpus:
            listener.note("workers on GPUs are not verified on hardware; see docs/gpu.md")
        replayed = self._replay(trace, past, listener)
        total = replayed.summary.faults_in_all
        if total and (missed := total.strikes_planned - total.strikes):
            listener.note(
                f"{missed} of the {total.strikes_planned} faults of --chaos were not due before the end"
            )
        return replayed

    def _replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Whichever way it ends, the workers have ended too."""
        setup, request, workload = self.setup, self.request, Workload.of(self.request)
        engine_setup.check(setup)
        require_prefixes(setup.router, trace)
        planned = plan(
            self.faults,
            setup.names(),
            int(trace.output_tokens.sum(dtype=np.int64)),
            request.seed,
            len(setup.each),
        )
        offered = workload.offered(trace)
        order = order_of(workload.policy, offered.priority, len(trace))
        log = ReplayLog(trace)
        log.restore(past.events)
        if log.begun:
            # With what the engine settled on when the replay began, so that the same requests fit.
            begun, pipelining = log.begun, cast(Pipelining, log.begun.pipelining)
            setup = replace(setup, kv_tokens=begun.kv_tokens)
            if not setup.several:  # whose layouts say it
                setup = replace(setup, batches=begun.batches, pipelining=pipelining)
        tokens = setup.kv_for(trace)
        made_up = setup.prefill == "off"
        prompts = None if made_up else partial(prompt_of, trace, request.seed, setup.model.vocab)
        # Prompts are drawn, and begin alike nowhere: what they have in common the trace says.
        blocks = trace.prefix_blocks if setup.several else None
        prefix = None if blocks is None else blocks.__getitem__
        policy = "fifo" if order.key is None else order.policy
        with starting.opened(setup, tokens, policy, WarmUp.of(trace), listener) as engine:
            # From here on there is something to go on with.
            journal = past.open()
            now = Begun(engine.schedule.batches, engine.schedule.pipelining, tokens)
            record(Resumed(log.at_s) if log.begun else now, log, journal)
            capacity = setup.facts(engine)["kv_capacity_tokens"]
            expected = expected_of(trace, offered, capacity, setup.names())
            with watched(listener, expected) as recent:
                run = Replay(engine, offered, order, log, prompts, prefix, recent, planned, journal)
                run.clock.slowdown = self.slowdown
                run.run()
                records = recorded(engine, run.clock, log.before, self.process)
                paging = setup.paging(engine)
                run.note_faults()  # noticed when workers were asked for what they know
            facts = {**setup.facts(engine), **paging, **self.told(records)}
            if self.choice:
                facts["deployment_auto"] = self.choice.describe()
        outcome = records.outcome(log, facts["kv_capacity_tokens"])
        faults = faults_of(outcome, log.faults, log.strikes, workload.slo_tbt_ms)
        made = None if made_up else [log.tokens.get(row, []) for row in range(len(trace))]
        summary = msgspec.structs.replace(
            summary_of(
                outcome,
                trace,
                workload,
                setup.hardware,
                shared_devices=setup.alone,
                prompts=not made_up,
                instances=len(setup.each),
            ),
            schedule=records.schedule(),
            faults=faults,
            faults_in_all=in_all(faults, log.strikes, len(planned)),
            resumed=ResumedFacts(times=len(log.resumed_s), at_s=log.resumed_s),
            tokens_sha256=None if made is None else tokens_sha256(made),
        )

        def draw(path: Path, window: Window | None) -> JsonObject:
            """Of the replay that has been: what the workers recorded of one window."""
            assert isinstance(records, Recorded)
            drawn, lanes, (first, last) = records.drawn(outcome, window)
            write_timeline(path, drawn, lanes)
            return {"window_s": [first, min(last, outcome.end_s)], "bubbles": bubbles(drawn, lanes)}

        return Replayed(
            outcome,
            facts,
            summary,
            why_rejected=log.why_refused,
            problem=_unsound(records),
            draw=None if setup.alone else draw,
        )


def prepare(request: ReplayRequest, _: Listener) -> PreparedEngine:
    """The request settled; a UserError if this machine cannot run it."""
    if request.prefill == "colocated" or str(request.prefill).startswith("pool:"):
        raise UserError(
            "replay-prefill",
            f"--prefill {request.prefill} is for modelled replays; the engine's model workers compute "
            "prompts with --prefill model, N others with --prefill N",
        )
    request = defaulted(
        request, model=MODEL, deployment=engine_setup.DEPLOYMENT, network="auto", max_num_seqs=MAX_SEQUENCES
    )
    devices = priced_devices(request.price, request.price_basis, request.power)
    auto = request.deployment == AUTO
    deployment = fastest.one_process(request) if auto else request.deployment or engine_setup.DEPLOYMENT
    each = parse_deployments(deployment, request.instances, devices)
    require_several(request, len(each))
    if len(each) > 1 and request.batches == "auto":
        raise UserError(
            "replay-batches-of-instances",
            "--batches auto measures one engine that has the machine to itself; say how many for --instances",
        )
    found = looked_up(msgspec.structs.replace(request, deployment=str(each[0])))
    called = {"max_sequences": "max_num_seqs", "overcommit": "kv_overcommit"}
    setup = settled(LiveSetup, request, called, **found, deployments=each, auto=auto)
    faults = [parse(spec) for spec in request.chaos]
    engine_setup.check(setup)
    for name in ("timeline", "chaos"):
        if setup.alone and request.is_set(name):
            raise engine_setup.needs_workers(name, setup)
    plan(faults, setup.names(), 0, 0, len(each))  # to refuse it before anything is loaded
    return PreparedEngine(request, setup, faults)


def _unsound(records: Recorded | OwnTimes) -> CheckFailedError | None:
    """The workers did what the schedule says, or the numbers are of something else."""
    if not records.violations:
        return None
    return CheckFailedError(
        "replay-schedule-violated",
        f"the workers left the schedule {len(records.violations)} times, first: {records.violations[0]}; "
        "this is a bug of the engine",
    )
