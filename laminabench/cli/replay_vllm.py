"""`laminabench replay --system vllm --backend live`: the flags as vLLM on this machine, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.hardware import priced_devices
from laminabench.cli.output import Output
from laminabench.errors import CheckFailedError, UserError

if TYPE_CHECKING:
    from laminabench.replay import Workload
    from laminabench.replay_vllm import ReplayedVllm
    from laminabench.runs.manifest import Backend, Partial
    from laminabench.traces.table import Trace

MODEL = "llama-mini"
# Flags of other systems and of modelled replays, and why they say nothing here.
_NOT_VLLMS: Mapping[str, tuple[str, str]] = {
    "costs_name": ("--costs", "a live replay takes its times from the clock"),
    "host_async": ("--host-async", "vLLM's host works as it does"),
    "kv_overcommit": ("--kv-overcommit", "vLLM's KV has no other memory to page to"),
    "prefix_sharing": ("--prefix-sharing", "the KV of prompts is made up, and a request's is its own"),
    "policy": ("--policy", "vLLM serves who came first"),
    "admission": ("--admission", "vLLM's KV grows, and it preempts where memory runs out"),
    "batches": ("--batches", "vLLM has one batch"),
    "pipelining": ("--pipelining", "vLLM has one batch"),
    "pipeline_parallel": ("--pipeline-parallel", "vLLM's workers share every layer; see --tensor-parallel"),
    "partition": ("--partition", "vLLM has no attention workers"),
    "overlap": ("--overlap", "vLLM has no attention workers"),
    "stream_chunks": ("--stream-chunks", "vLLM has no attention workers"),
    "stream_along": ("--stream-along", "vLLM has no attention workers"),
    "network_name": ("--network", "vLLM links its workers itself"),
    "oversubscribe": ("--oversubscribe", "a worker's threads have a core each"),
    "prefill": ("--prefill", "what is compared is decoding"),
    "chaos": ("--chaos", "vLLM does not recover from a worker's death"),
    "ray": ("--ray", "vLLM starts its workers itself"),
    "mapping": ("--mapping", "vLLM maps nothing to two memories"),
    "board": ("--board", "vLLM runs on no board with two memories"),
    "timeline": ("--timeline", "vLLM's workers record no work"),
    "timeline_window": ("--timeline-window", "vLLM's workers record no work"),
}
# What of that is how vLLM does it may be said.
_AS_VLLM_DOES = {"policy": "fifo", "admission": "grow"}
# Of vLLM's log, what is told of a failure; some of its lines are pages.
_TAIL, _WIDTH = 20, 300


class VllmReplay:
    """On real vLLM, by its engine's clock."""

    name: Backend = "live"
    coefficients: tuple[dict[str, Any], ...] = ()

    def __init__(self, flags: dict[str, Any], given: set[str], out: Output, _: int) -> None:
        from laminabench.baselines.environment import find
        from laminabench.catalog.deployment import parse_deployment
        from laminabench.catalog.find_model import model
        from laminabench.systems import live, vllm_setup

        for flag, (said, why) in _NOT_VLLMS.items():
            if flag in given and flags[flag] != _AS_VLLM_DOES.get(flag):
                raise UserError("replay-flag-unused", f"{said} says nothing to a live vLLM: {why}")
        self.flags, self.out = flags, out
        # From here on the flags are those in force, as a Run keeps them.
        for flag in _NOT_VLLMS:
            if flag != "policy":
                flags[flag] = None
        flags["model_name"] = flags["model_name"] or MODEL
        flags["deployment"] = flags["deployment"] or vllm_setup.DEPLOYMENT
        flags["max_num_seqs"] = flags["max_num_seqs"] or vllm_setup.MAX_SEQUENCES
        flags["runner_timeout"] = flags["runner_timeout"] or vllm_setup.TIMEOUT_S
        if "gpu_memory_utilization" not in given:
            flags["gpu_memory_utilization"] = None
        names = ("tensor_parallel", "max_num_seqs", "max_model_len", "block_size", "kv_tokens")
        same = {name: flags[name] for name in (*names, "gpu_memory_utilization", "enforce_eager")}
        self.setup = vllm_setup.VllmSetup(
            model=live.in_dtype(model(flags["model_name"]), flags["dtype"]),
            source=flags["model_name"],
            deployment=parse_deployment(
                flags["deployment"], priced_devices(flags["prices"], flags["price_basis"], flags["powers"])
            ),
            timeout_s=flags["runner_timeout"],
            **same,
        )
        vllm_setup.check(self.setup)
        self.environment = find(self.setup.kind)
        self.replayed: ReplayedVllm

    def replay(self, trace: Trace, offered: Workload) -> None:
        from laminabench.replay_vllm import replay_vllm

        environment, out = self.environment, self.out
        if environment.unlike_pins:
            out.note(f"{environment.python} is not as pinned: {', '.join(environment.unlike_pins[:3])}")
        if self.setup.kind == "cuda":
            out.note("vLLM for CUDA is not verified on hardware")
        out.note("starting vLLM; it takes half a minute, and minutes more if it compiles the model")
        with out.rates("replaying", "requests", "tokens/s") as progress:
            self.replayed = replay_vllm(
                trace,
                self.setup,
                offered,
                environment,
                progress=lambda requests, tokens: progress(requests, len(trace), tokens),
                started=lambda: out.detail("vLLM is ready"),
            )
        rejected = self.replayed.summary.requests.rejected
        if rejected:
            out.note(f"{rejected:,} requests were rejected; of the first: {self.replayed.why_rejected}")
        recomputed = self.facts["recomputed_tokens"]
        if recomputed:
            times = self.replayed.summary.preemptions
            out.note(f"vLLM preempted {times:,} times and computed {recomputed:,} tokens again")

    def timeline(self, trace: Trace, offered: Workload) -> dict[str, Any]:  # noqa: ARG002
        raise AssertionError("--timeline is refused")

    @property
    def facts(self) -> dict[str, Any]:
        return self.replayed.facts

    @property
    def partial(self) -> Partial | None:
        return self.replayed.partial

    @property
    def beside(self) -> Mapping[str, bytes]:
        """What vLLM wrote."""
        return {"vllm.log": self.replayed.log}

    def more(self) -> dict[str, Any]:
        return {}

    def disturbed(self) -> dict[str, Any]:
        return {}

    def require_sound(self) -> None:
        """A replay that ended early is told of with the end of vLLM's log."""
        partial = self.replayed.partial
        if partial is None:
            return
        tail = self.replayed.log.decode(errors="replace").splitlines()[-_TAIL:]
        click.echo(
            "\n".join(["laminabench: the end of vLLM's log:", *(f"  {line[:_WIDTH]}" for line in tail)]),
            err=True,
        )
        done, asked = (
            self.replayed.summary.requests.completed,
            len(self.replayed.outcome.requests["batch"]),
        )
        kept = "no Run was kept" if self.flags["no_out"] else "the Run is kept, marked partial, with vllm.log"
        raise CheckFailedError(
            "replay-ended-early", f"{partial.why}; {done:,} of {asked:,} requests were done; {kept}"
        )
