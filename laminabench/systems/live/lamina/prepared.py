"""A replay on the reference engine: a request settled, replayed by real clocks, and what workers recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import msgspec
import numpy as np

from laminabench.analysis.checksum import tokens_sha256
from laminabench.analysis.faults import faults_of, in_all
from laminabench.catalog.deployment import AUTO, Deployment, Instances, parse_deployments
from laminabench.catalog.hardware import priced_devices
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.summary import EngineSummary
from laminabench.runs.summary import Resumed as ResumedFacts
from laminabench.sim.outcome import Outcome
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
from laminabench.systems.live.lamina import fastest, memory, starting
from laminabench.systems.live.lamina.checks import check, needs_workers
from laminabench.systems.live.lamina.faults import Injection, parse, plan
from laminabench.systems.live.lamina.log import Begun, ReplayLog, Resumed, record
from laminabench.systems.live.lamina.loop import Replay, order_of
from laminabench.systems.live.lamina.records import PROCESS, OwnTimes, Recorded, recorded
from laminabench.systems.live.lamina.setup import DEPLOYMENT, PROMPT_TOKENS, LiveSetup
from laminabench.systems.live.lamina.starting import WarmUp
from laminabench.systems.live.local import MAX_SEQUENCES, MODEL, looked_up
from laminabench.systems.live.prompts import prompt_of
from laminabench.systems.live.recent import expected_of, watched
from laminabench.systems.modelled.vllm import Vllm
from laminabench.systems.router import require_prefixes, require_several
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener

if TYPE_CHECKING:
    from lamina.serve import Engine, Engines, Fleet


@dataclass(frozen=True, slots=True)
class PreparedEngine(Prepared):
    """A replay on the engine that is ready to start."""

    setup: LiveSetup
    faults: Sequence[Injection] = ()
    choice: fastest.Choice | None = None  # of --deployment auto
    resumable: ClassVar[bool] = True

    @property
    def deployment(self) -> Deployment | Instances:
        return self.setup.hardware

    @property
    def slowdown(self) -> float:
        """The seconds that one of the replay takes."""
        return 1.0

    @property
    def process(self) -> str:
        """The process name of a timeline's lanes."""
        return PROCESS

    def final_facts(self, records: Recorded | OwnTimes) -> JsonObject:
        """Return what is known only after the replay."""
        del records
        return {}

    def kv_tokens(self, setup: LiveSetup, trace: Trace) -> int:
        """Return the tokens of KV memory of each instance."""
        return memory.kv_tokens(setup, trace, memory.free_bytes(setup))

    def decided(self, trace: Trace, listener: Listener) -> Self:
        """Return it with the layout that is fastest on this machine, if that was requested."""
        if not self.setup.auto:
            return self
        choice = fastest.chosen(self.setup, self.request, trace, listener)
        request = msgspec.structs.replace(self.request, deployment=choice.deployment)
        return replace(self, request=request, setup=replace(choice.setup, auto=False), choice=choice)

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Replay here and now, continuing an interrupted replay from its journal."""
        setup = self.setup
        if setup.on_gpus:
            listener.note("workers on GPUs are not verified on hardware; see docs/gpu.md")
        replayed = self._replay(trace, past, listener)
        assert isinstance(replayed.summary, EngineSummary)
        total = replayed.summary.faults_in_all
        if total and (missed := total.strikes_planned - total.strikes):
            listener.note(
                f"{missed} of the {total.strikes_planned} faults of --chaos were not due before the end"
            )
        return replayed

    def _replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Replay on an engine; however this ends, the workers have ended too."""
        request, workload = self.request, Workload.of(self.request)
        check(self.setup)
        require_prefixes(self.setup.router, trace)
        tokens = int(trace.output_tokens.sum(dtype=np.int64))
        setup = self.setup
        planned = plan(self.faults, setup.names(), tokens, request.seed, len(setup.each))
        offered = workload.offered(trace)
        order = order_of(workload.policy, offered.priority, len(trace))
        log = ReplayLog(trace)
        log.restore(past.events)
        setup = _as_begun(setup, log.begun)
        tokens = self.kv_tokens(setup, trace)
        prompts = None if self._made_up else partial(prompt_of, trace, request.seed, setup.model.vocab)
        policy = "fifo" if order.key is None else order.policy
        with starting.opened(setup, tokens, policy, WarmUp.of(trace), listener) as engine:
            journal = past.open()  # from here on there is something to resume
            now = Begun(engine.schedule.batches, engine.schedule.pipelining, tokens)
            record(Resumed(log.at_s) if log.begun else now, log, journal)
            capacity = engine.kv_tokens
            expected = expected_of(trace, offered, capacity, setup.names())
            with watched(listener, expected) as recent:
                run = Replay(
                    engine=engine,
                    offered=offered,
                    order=order,
                    log=log,
                    prompts=prompts,
                    prefix=_prefixes(setup, trace),
                    recent=recent,
                    planned=planned,
                    journal=journal,
                )
                run.clock.slowdown = self.slowdown
                run.run()
                records = recorded(engine, run.clock, log.before, self.process)
                paging = paging_of(setup, engine)
                run.note_faults()  # noticed while records were collected
            facts = {**facts_of(setup, engine), **paging, **self.final_facts(records)}
        if self.choice:
            facts["deployment_auto"] = self.choice.describe()
        return self._replayed(setup, log, records, facts, len(planned))

    @property
    def _made_up(self) -> bool:
        """Whether KV is made up rather than computed from prompts."""
        return self.setup.prefill == "off"

    def _replayed(
        self,
        setup: LiveSetup,
        log: ReplayLog,
        records: Recorded | OwnTimes,
        facts: JsonObject,
        planned: int,
    ) -> Replayed:
        """Summarise what was logged and what the workers recorded."""
        workload, capacity = Workload.of(self.request), facts["kv_capacity_tokens"]
        assert isinstance(capacity, int)
        outcome = records.outcome(log, capacity)
        faults = faults_of(outcome, log.faults, log.strikes, workload.slo_tbt_ms)
        made = None if self._made_up else [log.tokens.get(row, []) for row in range(len(log.trace))]
        summary = msgspec.structs.replace(
            summary_of(
                outcome,
                log.trace,
                workload,
                setup.hardware,
                shared_devices=setup.alone,
                prompts=not self._made_up,
                instances=len(setup.each),
            ),
            schedule=records.schedule(),
            faults=faults,
            faults_in_all=in_all(faults, log.strikes, planned),
            resumed=ResumedFacts(times=len(log.resumed_s), at_s=log.resumed_s),
            tokens_sha256=None if made is None else tokens_sha256(made),
        )
        return Replayed(
            outcome,
            facts,
            summary,
            why_rejected=log.why_refused,
            problem=_unsound(records),
            draw=partial(_draw, records, outcome) if isinstance(records, Recorded) else None,
        )


def _as_begun(setup: LiveSetup, begun: Begun | None) -> LiveSetup:
    """Return the setup with what the engine settled before an interruption, so that the same requests fit."""
    if begun is None:
        return setup
    setup = replace(setup, kv_tokens=begun.kv_tokens)
    if setup.several:  # their layouts say it
        return setup
    return replace(setup, batches=begun.batches, pipelining=cast(Pipelining, begun.pipelining))


def _prefixes(setup: LiveSetup, trace: Trace) -> Callable[[int], Any] | None:
    """Return the leading blocks of a row's prompt, for a router.

    Prompts are random, so none share a prefix except as the trace says.
    """
    blocks = trace.prefix_blocks if setup.several else None
    return None if blocks is None else blocks.__getitem__


def _draw(records: Recorded, outcome: Outcome, path: Path, window: Window | None) -> JsonObject:
    """Draw what the workers recorded of one window."""
    drawn, lanes, (first, last) = records.drawn(outcome, window)
    write_timeline(path, drawn, lanes)
    return {"window_s": [first, min(last, outcome.end_s)], "bubbles": bubbles(drawn, lanes)}


def prepare(request: ReplayRequest, _: Listener) -> PreparedEngine:
    """Settle the request; raise a UserError if this machine cannot run it."""
    if request.prefill == "colocated" or str(request.prefill).startswith("pool:"):
        raise UserError(
            "replay-prefill",
            f"--prefill {request.prefill} is for modelled replays; the engine's model workers compute "
            "prompts with --prefill model, N others with --prefill N",
        )
    request = defaulted(
        request, model=MODEL, deployment=DEPLOYMENT, network="auto", max_num_seqs=MAX_SEQUENCES
    )
    devices = priced_devices(request.price, request.price_basis, request.power)
    auto = request.deployment == AUTO
    deployment = fastest.one_process(request) if auto else request.deployment or DEPLOYMENT
    each = parse_deployments(deployment, request.instances, devices)
    require_several(request, len(each))
    if len(each) > 1 and request.batches == "auto":
        raise UserError(
            "replay-batches-of-instances",
            "--batches auto measures one engine that has the machine to itself; say how many for --instances",
        )
    fields = looked_up(msgspec.structs.replace(request, deployment=str(each[0])))
    setup = settled(LiveSetup, request, **fields, deployments=each, auto=auto)
    faults = [parse(spec) for spec in request.chaos]
    check(setup)
    for name in ("timeline", "chaos"):
        if setup.alone and request.is_set(name):
            raise needs_workers(name, setup)
    plan(faults, setup.names(), 0, 0, len(each))  # to refuse it before anything is loaded
    return PreparedEngine(request, setup, faults)


def _unsound(records: Recorded | OwnTimes) -> CheckFailedError | None:
    """Return an error unless the workers did what the schedule says."""
    if not records.violations:
        return None
    return CheckFailedError(
        "replay-schedule-violated",
        f"the workers left the schedule {len(records.violations)} times, first: {records.violations[0]}; "
        "this is a bug of the engine",
    )


def twin(request: ReplayRequest) -> Mapping[str, str | int]:
    """Return the choices of its modelled twin."""
    choices: dict[str, str | int] = {}
    if request.prefill == "model":
        # The modelled default is of all tokens of an iteration, the engine's is of prompts.
        choices["max_batched_tokens"] = max(
            request.max_batched_tokens or PROMPT_TOKENS, request.max_num_seqs or MAX_SEQUENCES
        )
    if "+" not in (request.deployment or ""):
        # In one process it is one batch on one kind of device.
        choices |= {"system": Vllm.NAME, "admission": request.admission or "reserve", "block_size": 1}
    return choices


def facts_of(setup: LiveSetup, serving: Engines) -> JsonObject:
    """Return what a Run says of the engine, under the names that modelled replays use."""
    if setup.several:
        return _of_all(setup, cast("Fleet", serving))
    engine = cast("Engine", serving)
    same = (
        *("pipeline_parallel", "experts", "overlap", "stream_chunks", "admission"),
        *("oversubscribe", "prefill", "ray"),
    )
    return {
        "model_workers": setup.workers[0],
        "attention_workers": setup.workers[1],
        "replicas": 1 if setup.pipeline_parallel > 1 else engine.schedule.places,
        "batches": engine.schedule.batches,
        **({} if setup.alone else {"min_batch": setup.min_batch}),
        "pipelining": engine.schedule.pipelining,
        "attention_partition": setup.partition,
        "network": None if setup.alone else engine.core.network,
        **({} if setup.alone or not engine.core.network_why else {"network_why": engine.core.network_why}),
        "kv_capacity_tokens": engine.kv_tokens,
        "warm_up_iterations": engine.warm_up_iterations,
        "max_num_seqs": setup.max_num_seqs,
        "dtype": setup.model.dtype,
        **({} if setup.kv_dtype == "auto" else {"kv_dtype": setup.kv_dtype}),
        **({} if setup.kv_copy == "none" else {"kv_copy": setup.kv_copy}),
        **({"absorb": setup.absorb} if setup.model.latent else {}),
        **({} if setup.prefill == "off" else {"max_batched_tokens": setup.max_batched_tokens}),
        **{name: getattr(setup, name) for name in same},
    }


def paging_of(setup: LiveSetup, serving: Engines) -> JsonObject:
    """Return what paging has cost each attention worker that runs now, in pages, if there is any."""
    if setup.kv_overcommit == 1:
        return {}
    faults = {worker: asdict(each) for worker, each in serving.paging().items()}
    return {"kv_overcommit": setup.kv_overcommit, "kv_paging": faults}


def _of_all(setup: LiveSetup, fleet: Fleet) -> JsonObject:
    """Return what all instances have in common once, and what differs as a list."""
    instances = [facts_of(one, each.engine) for one, each in zip(setup.each, fleet.instances, strict=True)]
    return {
        **{
            name: value if all(one[name] == value for one in instances) else [one[name] for one in instances]
            for name, value in instances[0].items()
        },
        "instances": len(instances),
        "router": setup.router,
        "queue": setup.queue,
        "kv_capacity_tokens": sum(one.engine.kv_tokens for one in fleet.instances),
    }
