"""One replay on real vLLM: what came of it, with its summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laminabench.baselines.environment import Environment
from laminabench.replay import Workload, offered_of, summary_of
from laminabench.runs.manifest import Partial
from laminabench.runs.summary import Summary
from laminabench.sim.outcome import Outcome
from laminabench.systems.vllm_live import Ended, run
from laminabench.systems.vllm_setup import VllmSetup, check, free_bytes
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class ReplayedVllm:
    """What came out, and what vLLM reported of its configuration."""

    outcome: Outcome
    summary: Summary
    facts: dict[str, Any]
    partial: Partial | None
    why_rejected: str | None  # the first time
    log: bytes


def replay_vllm(
    trace: Trace,
    setup: VllmSetup,
    workload: Workload,
    environment: Environment,
    *,
    progress: Callable[[int, int], None] = lambda requests, tokens: None,
    started: Callable[[], None] = lambda: None,
) -> ReplayedVllm:
    """Replay on vLLM, here and now; where vLLM fails, what came of it until then, marked `partial`."""
    check(setup)
    offered = offered_of(trace, workload)
    ended = run(trace, setup, offered, environment, free_bytes(), progress=progress, started=started)
    received, outcome = ended.received, ended.received.outcome()
    summary = summary_of(outcome, trace, workload, setup.deployment)
    partial: Partial | None = None if ended.why is None else Partial(why=ended.why, at_s=received.at_s)
    facts = _facts(setup, environment, ended)
    return ReplayedVllm(outcome, summary, facts, partial, received.why_refused, ended.log)


def _facts(setup: VllmSetup, environment: Environment, ended: Ended) -> dict[str, Any]:
    """What a reader should know; first what all replays tell, then what vLLM reported."""
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
        "prefill": "off",
        "dtype": setup.model.dtype,
        "cores": ended.cores if setup.kind == "cpu" else None,
        "verified_on_hardware": setup.kind == "cpu",
        "environment": environment.describe(),
        "vllm": received.ready,
        # Of what is not stripped out: requests that were preempted are really computed again.
        "recomputed_tokens": received.recomputed,
        "vllm_preemptions": done.get("preemptions"),
        "prefill_verified_steps": done.get("steps"),
    }
