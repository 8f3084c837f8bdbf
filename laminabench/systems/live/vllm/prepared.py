"""A replay on real vLLM: a request settled, replayed by its engine's clock, and what it ran with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from laminabench.analysis.checksum import tokens_sha256
from laminabench.baselines.environment import Environment, find
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.manifest import Partial
from laminabench.runs.summary import Summary
from laminabench.systems.base import (
    Past,
    Prepared,
    Replayed,
    Workload,
    defaulted,
    settled,
    summary_of,
)
from laminabench.systems.live.local import MAX_SEQUENCES, MODEL, free_bytes, looked_up
from laminabench.systems.live.vllm import setup as vllm_setup
from laminabench.systems.live.vllm.runner import Ended, Received, run
from laminabench.systems.live.vllm.setup import VllmSetup
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener

# Of vLLM's log, what is shown of a failure; some of its lines are pages.
_TAIL, _WIDTH = 20, 300


@dataclass(frozen=True, slots=True)
class PreparedVllm(Prepared):
    """A replay on vLLM that is ready to start."""

    setup: VllmSetup
    environment: Environment

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Replay here and now; where vLLM fails, return the outcome until then, marked `partial`."""
        del past
        setup, environment, workload = self.setup, self.environment, Workload.of(self.request)
        if environment.pin_differences:
            listener.note(
                f"{environment.python} is not as pinned: {', '.join(environment.pin_differences[:3])}"
            )
        if setup.kind == "cuda":
            listener.note("vLLM for CUDA is not verified on hardware")
        listener.note("starting vLLM; it takes half a minute, and minutes more if it compiles the model")
        vllm_setup.check(setup)
        offered = workload.offered(trace)
        ended = run(
            trace, setup, offered, environment, free_bytes(), seed=self.request.seed, listener=listener
        )
        received, outcome = ended.received, ended.received.outcome()
        prompts = setup.prefill == "model"
        summary = summary_of(outcome, trace, workload, setup.deployment, prompts=prompts)
        # Tokens of requests that were cut short are not reported.
        if prompts and ended.why is None:
            made = [received.made.get(row, []) for row in range(len(trace))]
            summary = msgspec.structs.replace(summary, tokens_sha256=tokens_sha256(made))
        if received.recomputed:
            listener.note(
                f"vLLM preempted {summary.preemptions:,} times and computed {received.recomputed:,} "
                "tokens again"
            )
        partial = None if ended.why is None else Partial(why=ended.why, at_s=received.at_s)
        return Replayed(
            outcome,
            _facts(setup, environment, ended),
            summary,
            files={"vllm.log": ended.log},
            partial=partial,
            why_rejected=received.why_refused,
            problem=_ended_early(partial, summary, len(trace), saved=not self.request.no_out),
            tail=_tail(ended.log) if partial else "",
        )


def prepare(request: ReplayRequest, _: Listener) -> PreparedVllm:
    """Settle the request; raise a UserError if this machine cannot run it."""
    if request.prefill not in (None, "off", "model"):
        raise UserError(
            "replay-prefill",
            f"live vllm has no --prefill {request.prefill}: it computes prompts itself, in chunks while "
            "decoding, with --prefill model",
        )
    request = defaulted(
        request,
        model=MODEL,
        deployment=vllm_setup.DEPLOYMENT,
        max_num_seqs=MAX_SEQUENCES,
        runner_timeout=vllm_setup.TIMEOUT_S,
    )
    setup = settled(VllmSetup, request, **looked_up(request))
    vllm_setup.check(setup)
    return PreparedVllm(request, setup, find(setup.kind))


def _ended_early(
    partial: Partial | None, summary: Summary, requests: int, *, saved: bool
) -> CheckFailedError | None:
    if partial is None:
        return None
    done = summary.requests.completed
    where = "the Run is stored, marked partial, with vllm.log" if saved else "no Run was stored"
    return CheckFailedError(
        "replay-ended-early", f"{partial.why}; {done:,} of {requests:,} requests were done; {where}"
    )


def _tail(log: bytes) -> str:
    lines = log.decode(errors="replace").splitlines()[-_TAIL:]
    return "\n".join(["laminabench: the end of vLLM's log:", *(f"  {line[:_WIDTH]}" for line in lines)])


def _facts(setup: VllmSetup, environment: Environment, ended: Ended) -> JsonObject:
    """Return what a Run says of vLLM: first what all replays have, then vLLM's own settings."""
    received, done = ended.received, ended.received.done or {}
    ready = received.ready or {}
    return {
        "model_workers": setup.workers,
        "attention_workers": 0,
        "replicas": 1,
        "batches": 1,
        "tensor_parallel": setup.workers,
        "kv_capacity_tokens": ready.get("kv_capacity_tokens"),
        "max_num_seqs": setup.max_num_seqs,
        "block_size": ready.get("block_size"),
        "prefill": setup.prefill,
        "dtype": setup.model.dtype,
        "cores": ended.cores if setup.kind == "cpu" else None,
        "verified_on_hardware": setup.kind == "cpu",
        "environment": environment.describe(),
        "vllm": received.ready,
        "vllm_preemptions": done.get("preemptions"),
        **(_of_prompts(done) if setup.prefill == "model" else _of_stripped(received, done)),
    }


def _of_stripped(received: Received, done: Mapping[str, Any]) -> JsonObject:
    """Return what was computed again: preempted requests are not made up."""
    return {"recomputed_tokens": received.recomputed, "prefill_verified_steps": done.get("steps")}


def _of_prompts(done: Mapping[str, Any]) -> JsonObject:
    """Return vLLM's counts of prompt tokens; what it recomputes after preemption is not counted."""
    return {name: done.get(name) for name in ("prompt_tokens_computed", "prompt_tokens_cached")}


def twin(request: ReplayRequest) -> Mapping[str, str | int]:
    """Return the choices of its modelled twin: KV grows, and an iteration has as many tokens by default."""
    del request
    return {"admission": "grow"}
