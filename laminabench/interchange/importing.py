"""Import of a tool's file as a Run, with the tables of a client's own replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import structs

from laminabench.catalog.deployment import Deployment
from laminabench.interchange.aiperf import RECORDS
from laminabench.interchange.benchmark import MARK, Benchmark
from laminabench.runs.format import sha256_of
from laminabench.runs.manifest import NUMBERS, Backend, Host, Manifest, Partial, manifest
from laminabench.runs.summary import Summary
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.systems.base import Workload, summary_of
from laminabench.systems.live.endpoint.records import Noted, outcome_of
from laminabench.systems.live.endpoint.setup import Address, Behind, parse_url
from laminabench.systems.registry import NAMES
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError

SYSTEM = "openai"


@dataclass(frozen=True, slots=True)
class Given:
    """The user's additions to a tool's file."""

    model: str | None = None
    hardware: Deployment | None = None
    slo_tbt_ms: float = 100.0
    slo_ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A Run that is not yet written."""

    benchmark: Benchmark
    trace: Trace
    outcome: Outcome
    manifest: Manifest

    @property
    def summary(self) -> Summary:
        return self.manifest.summary

    @property
    def notes(self) -> list[str]:
        """Notes to read before its numbers."""
        numbers = NUMBERS[self.manifest.backend]
        article = "an" if numbers == "emulated" else "a"
        computed = f"this is an export of {article} {numbers} Run: its times were computed and not measured"
        return [
            *([computed] if self.manifest.backend != "live" else []),
            *self.benchmark.notes,
            *self.benchmark.differences(),
        ]

    def write(self, directory: Path) -> None:
        """Write it as a Run in this directory."""
        write_run(directory, self.outcome, self.trace, self.manifest)


def imported(benchmark: Benchmark, path: Path, given: Given) -> Imported:
    """Return the Run of one benchmark of this file."""
    name = given.model or benchmark.model
    if not name:
        raise UserError("import-no-model", f"{path} does not say which model answered; give --model")
    source = _source(path)
    digest = sha256_of(source)
    trace = _trace(benchmark, source, digest)
    outcome = _outcome(benchmark, trace)
    workload = Workload(
        benchmark.mode, benchmark.concurrency, slo_tbt_ms=given.slo_tbt_ms, slo_ttft_ms=given.slo_ttft_ms
    )
    # A file that laminabench exported states the backend: computed numbers stay marked as such.
    marked = benchmark.marks.get(f"{MARK}backend")
    backend: Backend = "modelled" if marked == "modelled" else "emulated" if marked == "emulated" else "live"
    system = benchmark.marks.get(f"{MARK}system", "")
    behind = Behind(_address(benchmark.url) if backend == "live" else None, given.hardware)
    facts = {
        "imported": {
            "tool": benchmark.tool,
            "version": benchmark.version or None,
            "file": source.name,
            "sha256": digest,
            "began_at_s": benchmark.began_at_s,
            **benchmark.marks,
            **benchmark.more,
        }
    }
    made = manifest(
        command=["laminabench", "import", str(path)],
        trace=trace,
        workload={
            "mode": workload.mode,
            "concurrency": workload.concurrency,
            "policy": None,
            "slo_tbt_ms": workload.slo_tbt_ms,
        },
        deployment=behind.describe().with_facts(facts),
        transforms={},
        system=system if system in NAMES else SYSTEM,
        model={"name": name},
        backend=backend,
        coefficients=[],
        wall_s=benchmark.duration_s,
        summary=summary_of(outcome, trace, workload, behind),
        partial=Partial(why=benchmark.partial, at_s=outcome.end_s) if benchmark.partial else None,
    )
    # It ran on another machine, or an unknown one.
    return Imported(benchmark, trace, outcome, structs.replace(made, host=Host(platform=benchmark.platform)))


def _address(url: str) -> Address | None:
    """Parse the server's URL; None if it is invalid or has credentials."""
    try:
        return parse_url(url)
    except UserError:
        return None


def _source(path: Path) -> Path:
    """Return the file that has the requests."""
    if path.is_dir():
        return path / (RECORDS if (path / RECORDS).exists() else "benchmarks.json")
    records = path.with_name(RECORDS)
    return (
        records
        if path.name.startswith("profile_export") and path.suffix == ".json" and records.exists()
        else path
    )


def _trace(benchmark: Benchmark, source: Path, digest: str) -> Trace:
    """Return the requests as they were sent: the file does not say what was meant to be sent."""
    calls = benchmark.calls
    name = source.parent.name if source.name == RECORDS and source.parent.name else source.stem
    meta = TraceMeta(
        f"{name}-{benchmark.part}" if benchmark.part else name,
        sha256=digest,
        origin=f"what {benchmark.called} sent, by {source.name}",
        notes=tuple(benchmark.notes),
    )
    return Trace(calls.sent_s, calls.prompt_tokens, calls.output_tokens, meta)


def _outcome(benchmark: Benchmark, trace: Trace) -> Outcome:
    calls, pieces = benchmark.calls, benchmark.calls.pieces
    size = len(calls)
    noted = Noted(
        np.arange(size),
        {
            "due_s": calls.due_s,
            "sent_s": calls.sent_s,
            "headers_s": calls.headers_s,
            "finished_s": np.where(calls.done, calls.last_s, np.nan),
            "attempts": np.ones(size, np.int32),
            "status_code": calls.status_code,
            "prompt_counted": calls.prompt_counted,
            "completion_counted": calls.completion_counted,
            "status": calls.status,
            "even": calls.even,
            "error": calls.error,
        },
        {"request": pieces.request, "at_s": pieces.at_s, "tokens": pieces.tokens},
    )
    outcome = outcome_of([noted], trace, benchmark.mode)
    # Without a due time, a request arrived when it was sent.
    arrival_s = np.where(np.isfinite(calls.due_s), calls.due_s, calls.sent_s)
    return replace(
        outcome,
        requests={**outcome.requests, "arrival_s": arrival_s},
        end_s=max(outcome.end_s, benchmark.duration_s or 0.0),
    )
