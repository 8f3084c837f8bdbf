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
from click.core import ParameterSource

from laminabench.cli.output import Output, reporting
from laminabench.cli.replay_options import replay_options
from laminabench.cli.traces.options import TraceOptions, trace_options
from laminabench.errors import UserError

if TYPE_CHECKING:
    from laminabench.cli.replay_live import LiveReplay
    from laminabench.cli.replay_modelled import ModelledReplay
    from laminabench.replay import Workload
    from laminabench.traces.table import Trace


@click.command()
@replay_options
@trace_options
@reporting
def replay(**flags: Any) -> None:
    """Replay a trace against a system: on modelled hardware, or live on this machine's cores.

    \b
    laminabench replay --trace azure-conv --system lamina
    laminabench replay --trace azure-conv --system vllm --deployment 4xh100
    laminabench replay --trace azure-code --backend live --scale-lengths 0.1 --num-requests 200
    """
    source = click.get_current_context().get_parameter_source
    given = {name for name in flags if source(name) not in (None, ParameterSource.DEFAULT)}
    Call(given=given, **flags).run()


class Call:
    """The flags of one call, and the steps from them to a printed summary."""

    def __init__(self, *, out: Output, workload: TraceOptions, given: set[str], **flags: Any) -> None:
        self.out = out
        self.options = workload
        self.flags = flags
        self.given = given
        self.started = time.perf_counter()

    def run(self) -> None:
        """Resolve, replay, keep, print."""
        from laminabench.cli.replay_summary import render  # noqa: PLC0415 - imports numpy, not for --help
        from laminabench.replay import Workload  # noqa: PLC0415

        if self.flags["no_out"] and self.flags["directory"]:
            raise click.UsageError("--out and --no-out contradict each other")
        self.check_targets()
        backend = self.backend()
        trace = self.options.load(self.flags["trace"], self.out)
        offered = Workload(*(self.flags[name] for name in ("mode", "concurrency", "policy", "slo_tbt_ms")))
        backend.replay(trace, offered)
        result = self.result(trace, backend)
        if not self.flags["no_out"]:
            result["run_dir"] = str(self.write(trace, offered, backend))
        undrawn: UserError | None = None
        if self.flags["timeline"]:
            try:
                result["timeline"] = self.timeline(trace, offered, backend)
            except UserError as error:  # told after what the replay has come to
                undrawn = error
        result["wall_s"] = time.perf_counter() - self.started
        self.out.result(result, lambda console: render(console, result))
        if undrawn:
            raise undrawn
        backend.require_sound()

    def backend(self) -> ModelledReplay | LiveReplay:
        """What the replay runs on; a UserError if the flags ask for something else than it has."""
        from laminabench.cli.replay_live import LiveReplay  # noqa: PLC0415 - one of them is enough
        from laminabench.cli.replay_modelled import ModelledReplay  # noqa: PLC0415

        chosen = LiveReplay if self.flags["backend"] == "live" else ModelledReplay
        return chosen(self.flags, self.given, self.out)

    def check_targets(self) -> None:
        """Refuse what could not be written before spending time on it."""
        from laminabench.runs.write import check_replaceable  # noqa: PLC0415
        from laminabench.sim.timeline import check_suffix  # noqa: PLC0415

        if self.flags["timeline"]:
            check_suffix(self.flags["timeline"])
        if self.flags["directory"]:
            check_replaceable(self.flags["directory"])

    def timeline(
        self, trace: Trace, offered: Workload, backend: ModelledReplay | LiveReplay
    ) -> dict[str, Any]:
        """Draw one window, and say where."""
        drawn = backend.timeline(trace, offered)
        first, last = drawn["window_s"]
        path = self.flags["timeline"]
        self.out.note(f"drew {first:.3f} to {last:.3f} s into {path}: open it in ui.perfetto.dev")
        return {"path": str(path), **drawn}

    def choices(self) -> dict[str, Any]:
        """Every flag of the replay as it was in force, so that a Run can be repeated from its manifest."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in self.flags.items()
            if name not in ("directory", "no_out")
        }

    def result(self, trace: Trace, backend: ModelledReplay | LiveReplay) -> dict[str, Any]:
        """The documented keys of a replay."""
        meta = trace.meta
        return {
            "backend": backend.name,
            "system": self.flags["system_name"],
            "deployment": str(backend.setup.deployment),
            "model": backend.setup.model.name,
            "mode": self.flags["mode"],
            "trace": {
                "name": meta.name,
                "source": meta.source,
                "sha256": meta.sha256,
                "requests": len(trace),
            },
            **backend.replayed.summary,
            "facts": backend.facts,
            **backend.more(),
            "run_dir": None,
        }

    def write(self, trace: Trace, offered: Workload, backend: ModelledReplay | LiveReplay) -> Path:
        """Keep the Run; where it is."""
        from laminabench.runs.manifest import manifest  # noqa: PLC0415
        from laminabench.runs.write import write_run  # noqa: PLC0415

        directory: Path = self.flags["directory"] or _free_directory(
            f"{trace.meta.name}-{self.flags['system_name']}-{backend.setup.model.name}"
        )
        facts = manifest(
            command=["laminabench", *sys.argv[1:]],
            seed=self.options.transforms.seed,
            trace=trace,
            transforms=asdict(self.options.transforms),
            workload={**asdict(offered), "options": self.choices()},
            system=self.flags["system_name"],
            deployment={**backend.setup.deployment.describe(), "facts": backend.facts},
            model=backend.setup.model.describe(),
            backend=backend.name,
            coefficients=backend.coefficients,
            wall_s=time.perf_counter() - self.started,
            summary={**backend.replayed.summary, **backend.kept()},
        )
        write_run(directory, backend.replayed.outcome, trace, facts)
        return directory


def _free_directory(name: str) -> Path:
    """runs/NAME-TIME, with a number if that exists: a Run is never replaced unasked."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stamped = Path("runs") / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (stamped.with_name(f"{stamped.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([stamped], numbered) if not path.exists())
