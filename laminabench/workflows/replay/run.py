"""The path from a request to a Run: look up system and trace, replay, write Run and journal."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from laminabench.catalog.deployment import AUTO
from laminabench.requests.replay import ReplayRequest, seconds
from laminabench.runs.journal import journal_path
from laminabench.runs.manifest import Manifest, manifest
from laminabench.systems.base import Prepared, Replayed, Workload
from laminabench.systems.modelled.prepared import Routed, replay_on
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import prepare, system
from laminabench.traces.resolve import cut, load_needed, transforms_of
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import SILENT, Listener
from laminabench.workflows.replay.journal import NO_JOURNAL, NoJournal, ReplayJournal
from laminabench.workflows.replay.metrics_page import metrics_served
from laminabench.workflows.replay.watching import live_report

if TYPE_CHECKING:
    from laminabench.runs.read import Run


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request; `directory` has the Run, if one was saved."""

    prepared: Prepared
    trace: Trace
    replayed: Replayed
    directory: Path | None
    wall_s: float

    def manifest(self, request: ReplayRequest) -> Manifest:
        """Return the Run's manifest; `request` is as given, before its system settled it."""
        prepared, replayed = self.prepared, self.replayed
        return manifest(
            command=["laminabench", "replay", *request.stored().arguments()],
            request=prepared.request.stored().text(),
            seed=request.seed,
            trace=self.trace,
            transforms=asdict(transforms_of(request)),
            workload=asdict(Workload.of(request)),
            system=request.system,
            deployment=prepared.deployment.describe().with_facts(replayed.facts),
            model=prepared.model.describe(),
            backend=prepared.backend,
            coefficients=replayed.coefficients,
            wall_s=self.wall_s,
            summary=replayed.summary,
            partial=replayed.partial,
        )

    def as_run(self, request: ReplayRequest) -> Run:
        """Return the result as `read_run` would, whether or not a Run was saved."""
        from laminabench.runs.read import Run
        from laminabench.runs.status import statuses

        outcome, trace = self.replayed.outcome, self.trace
        requests = {**outcome.requests, "status": statuses(outcome)}
        return Run(
            self.directory or Path("(not kept)"),
            self.manifest(request),
            dataclasses.replace(outcome, requests=requests),
            trace.prompt_tokens,
            trace.output_tokens,
        )

    def require_sound(self) -> None:
        """Raise the problem of numbers that are not what was requested, if any."""
        if self.replayed.problem:
            raise self.replayed.problem

    def require_complete(self) -> None:
        """Raise if the replay ended before its trace did."""
        self.require_sound()
        if self.replayed.partial:
            raise UserError("replay-ended-early", self.replayed.partial.sentence)

    def draw_timeline(self, path: Path, window: str | None) -> JsonObject:
        """Draw the work of one window, and say which."""
        assert self.replayed.draw is not None  # else the flag was refused
        chosen = None if window is None else seconds(window, "--timeline-window")
        return {"path": str(path), **self.replayed.draw(path, chosen)}


def head(prepared: Prepared) -> dict[str, str]:
    """Return the keys that even a failed replay has."""
    return {
        "backend": prepared.backend,
        "system": prepared.request.system,
        "deployment": str(prepared.deployment),
        "model": prepared.model.name,
        "mode": prepared.request.mode,
    }


def run(
    request: ReplayRequest,
    *,
    listener: Listener = SILENT,
    trace: Trace | None = None,
    resumed: ReplayJournal | None = None,
) -> Result:
    """Replay, and keep the Run unless the request says otherwise; UserErrors come before anything is written.

    `trace` is the request's, where it has been loaded and cut before. `resumed` is continued.
    """
    began = time.perf_counter()
    request.require_valid()
    if request.directory:
        from laminabench.runs.write import check_replaceable

        check_replaceable(Path(request.directory))
    prepared = prepare(request, listener)
    if trace is None:
        trace = load(request, listener)
    prepared = prepared.decided(trace, listener)
    directory = None if request.no_out else _directory(prepared, trace)
    # Continue with the chosen deployment.
    resolved = {"deployment": prepared.request.deployment} if request.deployment == AUTO else {}
    requested = msgspec.structs.replace(request, **resolved)
    journal = _journal(prepared, requested, trace, directory, resumed)
    about = {**head(prepared), "trace": trace.meta.name}
    with (
        metrics_served(listener, request.metrics_port, about) as on_event,
        journal.until_written(listener),
        live_report(on_event, directory, request, prepared, trace, lambda: journal.stored) as report,
    ):
        replayed = prepared.replay(trace, journal, report)
        report.ended(replayed)
        rejected = replayed.summary.requests.rejected
        if rejected and replayed.why_rejected:
            listener.note(f"{rejected:,} requests were rejected; of the first: {replayed.why_rejected}")
        result = Result(prepared, trace, replayed, directory, time.perf_counter() - began)
        if directory:
            from laminabench.runs.write import write_run

            write_run(directory, replayed.outcome, trace, result.manifest(request), replayed.files)
    return result


def load(request: ReplayRequest, listener: Listener) -> Trace:
    """Return the request's trace with its cuts applied."""
    assert request.trace is not None
    transforms = transforms_of(request)
    trace = load_needed(
        request.trace, transforms, listener, offline=bool(request.offline), max_rows=request.max_rows
    )
    return cut(trace, transforms, listener)


def replay(
    trace: Trace, system_name: str, setup: Setup, workload: Workload, routed: Routed | None = None
) -> Replayed:
    """Replay on modelled hardware that has been looked up already, as in comparisons and plans."""
    return replay_on(system(system_name), trace, setup, workload, routed or Routed())


def free_directory(name: str) -> Path:
    """Return runs/NAME-TIME, with a number if that exists or is being made."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stamped = Path("runs") / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (stamped.with_name(f"{stamped.name}-{number}") for number in itertools.count(2))
    paths = itertools.chain([stamped], numbered)
    return next(path for path in paths if not path.exists() and not journal_path(path).exists())


def _directory(prepared: Prepared, trace: Trace) -> Path:
    """Return the Run's folder."""
    request = prepared.request
    if request.directory:
        return Path(request.directory)
    return free_directory(f"{trace.meta.name}-{request.system}-{prepared.model.name}")


def _journal(
    prepared: Prepared,
    request: ReplayRequest,
    trace: Trace,
    directory: Path | None,
    resumed: ReplayJournal | None,
) -> ReplayJournal | NoJournal:
    """Return a journal, used until the Run is written, for a replay that can be resumed."""
    if directory is None or not prepared.resumable:
        return NO_JOURNAL
    if resumed is None:
        return ReplayJournal.begun(directory, request, trace)
    resumed.require_same(trace)
    return resumed
