"""`laminabench replay`."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
from collections.abc import Mapping
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
    from laminabench.cli.replay_backend import Replaying
    from laminabench.cli.replay_resume import Kept
    from laminabench.present.replay import ReplayResult
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
    laminabench replay --resume runs/azure-code-lamina-llama-mini-20260101-120000
    """
    context = click.get_current_context()
    source = context.get_parameter_source
    given = {name for name in context.params if source(name) not in (None, ParameterSource.DEFAULT)}
    if flags["resume"]:
        _resume(given, **flags)
    elif flags["trace"] is None:
        raise click.UsageError("Missing option '--trace'.")
    else:
        Call(given=given, parameters=context.params, **flags).run()


def _resume(given: set[str], *, out: Output, workload: TraceOptions, **flags: Any) -> None:
    """The call that was interrupted again, with what its journal has."""
    from laminabench.cli.replay_resume import in_force, reopened

    del workload  # the interrupted one's is in force
    kept = reopened(flags["resume"])
    with contextlib.closing(kept):
        found, was_given = in_force(kept, click.get_current_context().params, given)
        flags = {name: found[name] for name in flags}
        options = TraceOptions.of(found)
        Call(out=out, workload=options, given=was_given, parameters=found, kept=kept, **flags).run()


class Call:
    """The flags of one call, and the steps from them to a printed summary."""

    def __init__(
        self,
        *,
        out: Output,
        workload: TraceOptions,
        given: set[str],
        parameters: Mapping[str, Any],
        kept: Kept | None = None,
        **flags: Any,
    ) -> None:
        self.out = out
        self.options = workload
        self.flags = flags
        self.given = given
        self.parameters = dict(parameters)
        self.kept = kept
        self.started = time.perf_counter()

    def run(self) -> None:
        """Resolve, replay, keep, print."""
        from laminabench.present.replay import render
        from laminabench.replay import Workload

        if self.flags["no_out"] and self.flags["directory"]:
            raise click.UsageError("--out and --no-out contradict each other")
        self.check_targets()
        backend = self.backend()
        trace = self.options.load(self.flags["trace"], self.out)
        offered = Workload(*(self.flags[name] for name in ("mode", "concurrency", "policy", "slo_tbt_ms")))
        directory = None if self.flags["no_out"] else self.directory(trace, backend)
        with self.keeping(trace, backend, directory):
            backend.replay(trace, offered)
            result = self.result(trace, backend)
            if directory:
                self.write(directory, trace, offered, backend)
                result.run_dir = str(directory)
        undrawn: UserError | None = None
        try:
            if self.flags["timeline"]:
                result.timeline = self.timeline(trace, offered, backend)
            if self.flags["plot"]:
                result.plot = self.plot(trace, backend)
        except UserError as error:  # told after what the replay has come to
            undrawn = error
        result.wall_s = time.perf_counter() - self.started
        self.out.result(result.describe(), lambda console: render(console, result))
        if undrawn:
            raise undrawn
        backend.require_sound()

    def keeping(
        self, trace: Trace, backend: Replaying, directory: Path | None
    ) -> contextlib.AbstractContextManager[None]:
        """A replay on our engine has a journal until its Run is written."""
        from laminabench.cli.replay_live import LiveReplay
        from laminabench.cli.replay_resume import begun, require_same

        if directory is None or not isinstance(backend, LiveReplay):
            return contextlib.nullcontext()
        if self.kept:
            require_same(self.kept, trace)
        kept = self.kept or begun(directory, self.parameters, self.given, trace)
        backend.keeper = kept
        return kept.until_written(self.out)

    def backend(self) -> Replaying:
        """What the replay runs on; a UserError if the flags ask for something else than it has."""
        from laminabench.cli.replay_backend import replaying

        return replaying(self.flags, self.given, self.out, self.options.transforms.seed)

    def check_targets(self) -> None:
        """Refuse what could not be written before spending time on it."""
        from laminabench.figures.drawn import check_target
        from laminabench.runs.write import check_replaceable
        from laminabench.sim.timeline import check_suffix

        if self.flags["timeline"]:
            check_suffix(self.flags["timeline"])
        if self.flags["plot"]:
            check_target(self.flags["plot"])
        if self.flags["directory"]:
            check_replaceable(self.flags["directory"])

    def timeline(self, trace: Trace, offered: Workload, backend: Replaying) -> dict[str, Any]:
        """Draw one window, and say where."""
        drawn = backend.timeline(trace, offered)
        first, last = drawn["window_s"]
        path = self.flags["timeline"]
        self.out.note(f"drew {first:.3f} to {last:.3f} s into {path}: open it in ui.perfetto.dev")
        return {"path": str(path), **drawn}

    def plot(self, trace: Trace, backend: Replaying) -> str:
        """Draw the replay over time; where."""
        from laminabench.figures.replay_over_time import draw
        from laminabench.present.replay import on_boards

        path: Path = self.flags["plot"]
        how = "live, measured" if backend.name == "live" else "modelled"
        how += ", PARTIAL" if backend.partial else ""
        what = f"{trace.meta.name} on {self.flags['system_name']} {backend.setup.deployment}"
        boards = ", ".join(on_boards(str(backend.setup.deployment), backend.facts))
        what += f" ({boards})" if boards else ""
        draw(
            backend.replayed.outcome,
            path,
            title=f"{what} with {backend.setup.model.name}, {how}",
            slo_tbt_ms=self.flags["slo_tbt_ms"],
            **backend.disturbed(),
        )
        self.out.note(f"drew {path}")
        return str(path)

    def choices(self) -> dict[str, Any]:
        """Every flag of the replay as it was in force, so that a Run can be repeated from its manifest."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in self.flags.items()
            if name not in ("directory", "no_out", "resume")
        }

    def result(self, trace: Trace, backend: Replaying) -> ReplayResult:
        """What is printed."""
        from laminabench.present.replay import ReplayResult

        return ReplayResult(
            backend.name,
            self.flags["system_name"],
            str(backend.setup.deployment),
            backend.setup.model.name,
            self.flags["mode"],
            trace.meta,
            len(trace),
            backend.replayed.summary,
            backend.facts,
            partial=backend.partial,
            **backend.more(),
        )

    def directory(self, trace: Trace, backend: Replaying) -> Path:
        """Where the Run goes."""
        chosen: Path | None = self.flags["directory"]
        return chosen or free_directory(
            f"{trace.meta.name}-{self.flags['system_name']}-{backend.setup.model.name}"
        )

    def write(self, directory: Path, trace: Trace, offered: Workload, backend: Replaying) -> None:
        """Keep the Run."""
        from laminabench.cli.replay_endpoint_options import redacted
        from laminabench.runs.manifest import manifest
        from laminabench.runs.write import write_run

        facts = manifest(
            # Of one that was resumed the command that it began with: that repeats it.
            command=self.kept.header["command"] if self.kept else ["laminabench", *redacted(sys.argv[1:])],
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
            summary=backend.replayed.summary,
            partial=backend.partial,
        )
        write_run(directory, backend.replayed.outcome, trace, facts, backend.beside)


def free_directory(name: str) -> Path:
    """runs/NAME-TIME, with a number if that exists or is being made: a Run is never replaced unasked."""
    from laminabench.runs.journal import beside

    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stamped = Path("runs") / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (stamped.with_name(f"{stamped.name}-{number}") for number in itertools.count(2))
    paths = itertools.chain([stamped], numbered)
    return next(path for path in paths if not path.exists() and not beside(path).exists())
