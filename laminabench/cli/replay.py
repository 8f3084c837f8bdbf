"""`laminabench replay`."""

from __future__ import annotations

import itertools
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.hardware import priced_devices
from laminabench.cli.output import Output, reporting
from laminabench.cli.replay_options import replay_options
from laminabench.cli.traces.options import TraceOptions, trace_options

if TYPE_CHECKING:
    from laminabench.replay import Replayed, Workload
    from laminabench.systems.setup import Setup
    from laminabench.traces.table import Trace


@click.command()
@replay_options
@trace_options
@reporting
def replay(**flags: Any) -> None:
    """Replay a trace against a system on modelled hardware, and say what it would do.

    \b
    laminabench replay --trace azure-conv --system lamina
    laminabench replay --trace azure-conv --system vllm --deployment 4xh100
    """
    Call(**flags).run()


class Call:
    """The flags of one call, and the steps from them to a printed summary."""

    def __init__(self, *, out: Output, workload: TraceOptions, **flags: Any) -> None:
        self.out = out
        self.options = workload
        self.flags = flags
        self.started = time.perf_counter()

    def run(self) -> None:
        """Resolve, simulate, keep, print."""
        from laminabench.cli.replay_summary import render  # noqa: PLC0415 - imports numpy, not for --help
        from laminabench.replay import Workload  # noqa: PLC0415

        if self.flags["no_out"] and self.flags["directory"]:
            raise click.UsageError("--out and --no-out contradict each other")
        self.check_targets()
        setup = self.setup()
        trace = self.options.load(self.flags["trace"], self.out)
        if self.flags["prefix_sharing"] and trace.prefix_blocks is None:
            self.out.note(f"{trace.meta.name} does not say which prompts share a prefix: nothing is shared")
        offered = Workload(*(self.flags[name] for name in ("mode", "concurrency", "policy", "slo_tbt_ms")))
        replayed = self.replay(trace, setup, offered, (0.0, 0.0))
        result = self.result(trace, setup, replayed)
        if self.flags["timeline"]:
            result["timeline"] = self.timeline(trace, setup, offered, replayed)
        if not self.flags["no_out"]:
            self.write(trace, setup, offered, replayed, result)
        result["wall_s"] = time.perf_counter() - self.started
        self.out.result(result, lambda console: render(console, result))

    def check_targets(self) -> None:
        """Refuse what could not be written before spending time on it."""
        from laminabench.runs.write import check_replaceable  # noqa: PLC0415
        from laminabench.sim.timeline import check_suffix  # noqa: PLC0415

        if self.flags["timeline"]:
            check_suffix(self.flags["timeline"])
        if self.flags["directory"]:
            check_replaceable(self.flags["directory"])

    def setup(self) -> Setup:
        """The catalogue's entries behind the names."""
        from laminabench.catalog.cost_file import load_costs  # noqa: PLC0415
        from laminabench.catalog.deployment import parse_deployment  # noqa: PLC0415
        from laminabench.catalog.find_model import model  # noqa: PLC0415
        from laminabench.catalog.network import parse_network  # noqa: PLC0415
        from laminabench.systems.registry import system  # noqa: PLC0415
        from laminabench.systems.setup import Setup  # noqa: PLC0415

        flags = self.flags
        shape = model(flags["model_name"])
        found = system(flags["system_name"])
        text = flags["deployment"] or found.default_deployment(shape)
        deployment = parse_deployment(text, priced_devices(flags["prices"], self.price_basis()))
        if deployment.price_note:
            self.out.note(deployment.price_note)
        return Setup(
            model=shape,
            deployment=deployment,
            costs=load_costs(flags["costs_name"]),
            network=parse_network(flags["network_name"] or found.NETWORK),
            batches=flags["batches"],
            pipelining=flags["pipelining"],
            overlap=flags["overlap"],
            partition=flags["partition"],
            stream_chunks=flags["stream_chunks"],
            overcommit=flags["kv_overcommit"],
            pipeline_parallel=flags["pipeline_parallel"],
            stream_along=flags["stream_along"],
            host_async=flags["host_async"],
            admission=flags["admission"],
            prefix_sharing=flags["prefix_sharing"],
            max_num_seqs=flags["max_num_seqs"],
            block_tokens=flags["block_size"],
            memory_utilization=flags["gpu_memory_utilization"],
        )

    def price_basis(self) -> str | None:
        """v1's cheap devices are not for rent: its systems are compared by what they cost to buy."""
        chosen: str | None = self.flags["price_basis"]
        return chosen or ("purchase" if self.flags["system_name"] == "lamina-v1" else None)

    def replay(
        self, trace: Trace, setup: Setup, offered: Workload, record_s: tuple[float, float]
    ) -> Replayed:
        from laminabench.replay import replay as run_replay  # noqa: PLC0415

        with self.out.progress("replaying", unit="requests") as progress:
            return run_replay(
                trace,
                self.flags["system_name"],
                setup,
                offered,
                record_s=record_s,
                progress=lambda done: progress(done, len(trace)),
            )

    def timeline(self, trace: Trace, setup: Setup, offered: Workload, replayed: Replayed) -> dict[str, Any]:
        """Replay once more, keeping every piece of work of one window."""
        from laminabench.sim.timeline import bubbles, two_iterations, write_timeline  # noqa: PLC0415

        outcome = replayed.outcome
        first, last = self.flags["timeline_window"] or two_iterations(outcome)
        first, last = min(first, outcome.end_s), min(last, outcome.end_s)
        again = self.replay(trace, setup, offered, (first, last))
        write_timeline(self.flags["timeline"], again.outcome, again.modelled.spec)
        idle = bubbles(again.outcome, again.modelled.spec)
        self.out.note(
            f"drew {first:.3f} to {last:.3f} s into {self.flags['timeline']}: open it in ui.perfetto.dev"
        )
        return {"path": str(self.flags["timeline"]), "window_s": [first, last], "bubbles": idle}

    def choices(self) -> dict[str, Any]:
        """Every flag of the replay as it was in force, so that a Run can be repeated from its manifest."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in self.flags.items()
            if name not in ("directory", "no_out")
        }

    def result(self, trace: Trace, setup: Setup, replayed: Replayed) -> dict[str, Any]:
        """The documented keys of a replay."""
        meta = trace.meta
        return {
            "backend": "modelled",
            "system": self.flags["system_name"],
            "deployment": str(setup.deployment),
            "model": setup.model.name,
            "costs_set": setup.costs.name,
            "mode": self.flags["mode"],
            "trace": {
                "name": meta.name,
                "source": meta.source,
                "sha256": meta.sha256,
                "requests": len(trace),
            },
            **replayed.summary,
            "facts": replayed.modelled.facts,
            "simulation_s": replayed.simulation_s,
            "run_dir": None,
        }

    def write(
        self, trace: Trace, setup: Setup, offered: Workload, replayed: Replayed, result: dict[str, Any]
    ) -> None:
        """Keep the Run."""
        from laminabench.runs.manifest import manifest  # noqa: PLC0415
        from laminabench.runs.write import write_run  # noqa: PLC0415

        directory = self.flags["directory"] or _free_directory(
            f"{trace.meta.name}-{self.flags['system_name']}-{setup.model.name}"
        )
        facts = manifest(
            command=["laminabench", *sys.argv[1:]],
            seed=self.options.transforms.seed,
            trace=trace,
            transforms=asdict(self.options.transforms),
            workload={**asdict(offered), "options": self.choices()},
            system=self.flags["system_name"],
            deployment={**setup.deployment.describe(), "facts": replayed.modelled.facts},
            model=setup.model.describe(),
            backend="modelled",
            coefficients=replayed.modelled.coefficients,
            wall_s=time.perf_counter() - self.started,
            summary=replayed.summary,
        )
        write_run(directory, replayed.outcome, trace, facts)
        result["run_dir"] = str(directory)


def _free_directory(name: str) -> Path:
    """runs/NAME-TIME, with a number if that exists: a Run is never replaced unasked."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stamped = Path("runs") / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (stamped.with_name(f"{stamped.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([stamped], numbered) if not path.exists())
