"""`laminabench replay --backend live`: the flags as the reference engine on this machine, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laminabench.cli.engine_extra import needed
from laminabench.cli.hardware import priced_devices
from laminabench.cli.output import Output
from laminabench.errors import CheckFailedError, UserError

if TYPE_CHECKING:
    from laminabench.cli.replay_resume import Kept
    from laminabench.replay import Workload
    from laminabench.runs.manifest import Backend, Partial
    from laminabench.traces.table import Trace

# Flags of modelled replays only, and why they say nothing here.
MODELLED_ONLY: Mapping[str, tuple[str, str]] = {
    "costs_name": ("--costs", "a live replay takes its times from the clock"),
    "host_async": ("--host-async", "the engine's host works as it does"),
    "kv_overcommit": ("--kv-overcommit", "attention workers have no other memory to page to"),
    "prefix_sharing": ("--prefix-sharing", "the engine stores every prompt by itself"),
    "block_size": ("--block-size", "the engine's KV memory is handed out token by token"),
    "gpu_memory_utilization": ("--gpu-memory-utilization", "give --kv-tokens instead"),
    "mapping": ("--mapping", "no board with two memories is here"),
    "board": ("--board", "no board with two memories is here"),
}


class LiveReplay:
    """On this machine, by its clocks."""

    name: Backend = "live"
    coefficients: tuple[dict[str, Any], ...] = ()
    partial: Partial | None = None  # what is interrupted can be resumed
    beside: Mapping[str, bytes] = {}

    def __init__(self, flags: dict[str, Any], given: set[str], out: Output, seed: int) -> None:
        from laminabench.catalog.deployment import parse_deployment
        from laminabench.catalog.find_model import model
        from laminabench.systems import live
        from laminabench.systems.chaos import parse, plan

        for flag, (said, why) in MODELLED_ONLY.items():
            if flag in given:
                raise UserError("replay-flag-unused", f"{said} is for --backend modelled: {why}")
        self.flags, self.out, self.seed = flags, out, seed
        self.keeper: Kept | None = None  # the journal, where there is one
        self.chaos = [parse(spec) for spec in flags["chaos"]]
        # From here on the flags are those in force, as a Run keeps them.
        for flag in MODELLED_ONLY:
            flags[flag] = None
        flags["model_name"] = flags["model_name"] or live.MODEL
        flags["deployment"] = flags["deployment"] or live.DEPLOYMENT
        flags["network_name"] = flags["network_name"] or "auto"
        flags["overlap"] = flags["overlap"] and "overlap" in given
        flags["partition"] = flags["partition"] or "heads"
        flags["stream_chunks"] = flags["stream_chunks"] or 1
        flags["stream_along"] = flags["stream_along"] or "requests"
        flags["max_num_seqs"] = flags["max_num_seqs"] or live.MAX_SEQUENCES
        names = ("batches", "pipelining", "pipeline_parallel", "partition", "stream_chunks", "stream_along")
        others = ("overlap", "admission", "kv_tokens", "oversubscribe", "prefill", "ray")
        same = {name: flags[name] for name in (*names, *others)}
        self.setup = live.LiveSetup(
            model=live.in_dtype(model(flags["model_name"]), flags["dtype"]),
            source=flags["model_name"],
            deployment=parse_deployment(
                flags["deployment"], priced_devices(flags["prices"], flags["price_basis"], flags["powers"])
            ),
            network=flags["network_name"],
            max_sequences=flags["max_num_seqs"],
            **same,
        )
        live.check(self.setup)
        plan(self.chaos, self.setup.names(), 0, 0)  # to refuse it before anything is loaded

    def replay(self, trace: Trace, offered: Workload) -> None:
        from laminabench.replay import replay_live

        workers, keeper = self.setup.processes, self.keeper
        where = f" in the Ray cluster at {self.setup.ray}" if self.setup.ray else ""
        self.out.note(f"starting {workers} workers{where}; loading torch and weights takes some seconds")
        with needed(), self.out.rates("replaying", "requests", "tokens/s") as progress:
            self.replayed = replay_live(
                trace,
                self.setup,
                offered,
                seed=self.seed,
                chaos=self.chaos,
                journal=keeper.open if keeper else None,
                past=keeper.past if keeper else (),
                progress=lambda requests, tokens: progress(requests, len(trace), tokens),
            )
        blows = self.replayed.summary.faults_in_all
        if blows and (missed := blows.strikes_planned - blows.strikes):
            self.out.note(
                f"{missed} of the {blows.strikes_planned} blows of --chaos were not due before the end"
            )
        rejected = self.replayed.summary.requests.rejected
        if rejected:
            self.out.note(f"{rejected:,} requests were rejected; of the first: {self.replayed.why_rejected}")

    def timeline(self, trace: Trace, offered: Workload) -> dict[str, Any]:  # noqa: ARG002 - as a modelled one
        """Of the replay that has been: what the workers recorded of one window."""
        from laminabench.sim.timeline import bubbles, write_timeline

        drawn, lanes, window_s = self.replayed.recorded.drawn(
            self.replayed.outcome, self.flags["timeline_window"]
        )
        write_timeline(self.flags["timeline"], drawn, lanes)
        last = min(window_s[1], self.replayed.outcome.end_s)
        return {"window_s": [window_s[0], last], "bubbles": bubbles(drawn, lanes)}

    @property
    def facts(self) -> dict[str, Any]:
        return self.replayed.facts

    def more(self) -> dict[str, Any]:
        """Fields of the result that only this backend has."""
        return {}

    def disturbed(self) -> dict[str, Any]:
        """What a picture over time marks."""
        return {"faults": self.replayed.faults, "resumed_s": self.replayed.resumed_s}

    def require_sound(self) -> None:
        """The workers did what the schedule says, or the numbers are of something else."""
        violations = self.replayed.recorded.violations
        if violations:
            raise CheckFailedError(
                "replay-schedule-violated",
                f"the workers left the schedule {len(violations)} times, first: {violations[0]}; "
                "this is a bug of the engine",
            )
