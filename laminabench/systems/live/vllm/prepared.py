"""A replay on real vLLM: a request settled, replayed by its engine's clock, and what it ran with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from laminabench.baselines.environment import Environment, find
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import priced_devices
from laminabench.catalog.models import ModelShape
from laminabench.errors import CheckFailedError
from laminabench.listener import Listener
from laminabench.request import ReplayRequest
from laminabench.runs.manifest import Backend, Partial
from laminabench.runs.summary import Summary
from laminabench.systems.base import Past, Replayed, Workload, summary_of
from laminabench.systems.live.lamina.setup import in_dtype
from laminabench.systems.live.vllm import setup as vllm_setup
from laminabench.systems.live.vllm.runner import Ended, run
from laminabench.systems.live.vllm.setup import VllmSetup
from laminabench.traces.table import Trace

MODEL = "llama-mini"
# Of vLLM's log, what is shown of a failure; some of its lines are pages.
_TAIL, _WIDTH = 20, 300


@dataclass(frozen=True, slots=True)
class PreparedVllm:
    """Ready to be started."""

    request: ReplayRequest
    setup: VllmSetup
    environment: Environment

    @property
    def backend(self) -> Backend:
        return "live"

    @property
    def costs(self) -> None:
        return None

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
        """Here and now; where vLLM fails, what came of it until then, marked `partial`."""
        del past
        setup, environment, workload = self.setup, self.environment, Workload.of(self.request)
        if environment.unlike_pins:
            listener.note(f"{environment.python} is not as pinned: {', '.join(environment.unlike_pins[:3])}")
        if setup.kind == "cuda":
            listener.note("vLLM for CUDA is not verified on hardware")
        listener.note("starting vLLM; it takes half a minute, and minutes more if it compiles the model")
        with listener.rates("replaying", "requests", "tokens/s") as progress:
            vllm_setup.check(setup)
            ended = run(
                trace,
                setup,
                workload.offered(trace),
                environment,
                vllm_setup.free_bytes(),
                progress=lambda requests, tokens: progress(requests, len(trace), tokens),
                started=lambda: listener.detail("vLLM is ready"),
            )
        received, outcome = ended.received, ended.received.outcome()
        summary = summary_of(outcome, trace, workload, setup.deployment)
        if received.recomputed:
            listener.note(
                f"vLLM preempted {summary.preemptions:,} times and computed {received.recomputed:,} "
                "tokens again"
            )
        partial: Partial | None = None if ended.why is None else Partial(why=ended.why, at_s=received.at_s)
        return Replayed(
            outcome,
            _facts(setup, environment, ended),
            summary,
            beside={"vllm.log": ended.log},
            partial=partial,
            why_rejected=received.why_refused,
            problem=_ended_early(partial, summary, len(trace), kept=not self.request.no_out),
            tail=_tail(ended.log) if partial else "",
        )


def prepare(request: ReplayRequest) -> PreparedVllm:
    """The request settled; a UserError if this machine cannot run it."""
    source, deployment = request.model or MODEL, request.deployment or vllm_setup.DEPLOYMENT
    most = request.max_num_seqs or vllm_setup.MAX_SEQUENCES
    timeout_s = request.runner_timeout or vllm_setup.TIMEOUT_S
    request = msgspec.structs.replace(
        request, model=source, deployment=deployment, max_num_seqs=most, runner_timeout=timeout_s
    )
    setup = VllmSetup(
        model=in_dtype(model(source), request.dtype),
        source=source,
        deployment=parse_deployment(
            deployment, priced_devices(request.price, request.price_basis, request.power)
        ),
        tensor_parallel=request.tensor_parallel,
        max_num_seqs=most,
        max_model_len=request.max_model_len,
        block_size=request.block_size,
        kv_tokens=request.kv_tokens,
        gpu_memory_utilization=request.gpu_memory_utilization,
        enforce_eager=bool(request.enforce_eager),
        timeout_s=timeout_s,
    )
    vllm_setup.check(setup)
    return PreparedVllm(request, setup, find(setup.kind))


def _ended_early(
    partial: Partial | None, summary: Summary, requests: int, *, kept: bool
) -> CheckFailedError | None:
    if partial is None:
        return None
    done = summary.requests.completed
    where = "the Run is kept, marked partial, with vllm.log" if kept else "no Run was kept"
    return CheckFailedError(
        "replay-ended-early", f"{partial.why}; {done:,} of {requests:,} requests were done; {where}"
    )


def _tail(log: bytes) -> str:
    lines = log.decode(errors="replace").splitlines()[-_TAIL:]
    return "\n".join(["laminabench: the end of vLLM's log:", *(f"  {line[:_WIDTH]}" for line in lines)])


def _facts(setup: VllmSetup, environment: Environment, ended: Ended) -> dict[str, Any]:
    """What a reader should know; first what all replays tell, then what vLLM said it runs with."""
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
