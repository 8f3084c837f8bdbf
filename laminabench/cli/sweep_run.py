"""A sweep from its points to its table: traces are loaded once, saved points are reused."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from laminabench.catalog.cost_file import digest
from laminabench.cli.output import Output
from laminabench.cli.sweep_points import Point, TraceKey
from laminabench.render.sheets.replay import describe as describe_replay
from laminabench.requests.sweep import SweepRequest
from laminabench.runs.manifest import host
from laminabench.traces.resolve import cut, load_needed, transforms_of
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, Interrupted, Terminated, UserError
from laminabench.util.json import json_safe, to_json
from laminabench.util.parallel import cores, spread
from laminabench.util.progress import SILENT, Listener, Once, Watching
from laminabench.util.redact import command_line, redacted
from laminabench.util.version import __version__, describe, git_commit
from laminabench.workflows.replay import run
from laminabench.workflows.replay.run import head
from laminabench.workflows.sweep.rows import TABLE, row, write
from laminabench.workflows.sweep.store import SweepStore, key_of, opened
from laminabench.workflows.sweep.values import Varied

Row = dict[str, Any]
# The function that replays points, their indices, how many at once, and the cluster.
_Round = tuple[Callable[[Mapping[TraceKey, Trace], Point], Row], list[int], int | None, str | None]


class Sweep:
    """The points of one sweep, with the traces that they replay."""

    def __init__(
        self, flags: Sequence[str], varied: Sequence[Varied], points: list[Point], out: Output
    ) -> None:
        self.points, self.out = points, out
        self.traces = _loaded(points, out)
        self._digests = _digests(points)
        self.keys = [key_of(self._identity(point)) for point in points]
        self.identity = {
            "laminabench": describe(),
            "vary": [each.text for each in varied],
            "flags": redacted(flags),
            "points": hashlib.sha256("".join(self.keys).encode()).hexdigest(),
        }

    def default_directory(self) -> Path:
        """Return the sweep's default folder, the same in each call, so that a sweep resumes."""
        names = [next(iter(self.traces.values())).meta.name, *self.points[0].varied]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(names))
        return Path("sweeps") / f"{plain}-{self.identity['points'][:8]}"

    def run(self, directory: Path, request: SweepRequest) -> tuple[list[Row], int]:
        """Replay the points without results; return the table's rows, and the number of reused points."""
        ray = request.ray
        if ray and any(point.prepared.backend == "live" for point in self.points):
            raise UserError(
                "sweep-ray-live",
                "--ray is for modelled points; live ones are measured on this machine, in turn",
            )
        began = time.perf_counter()
        with opened(directory, self._manifest(), self.keys) as store:
            if request.retry_failed:
                store.forget_failed()
            before = len(store.results)
            with self._reporting(store):
                self._replay(store, request.jobs, ray)
            points = zip(self.points, self.keys, strict=True)
            rows = [row(point.varied, store.results[key]) for point, key in points]
            write(rows, directory / TABLE)
            failed = sum(each["error"] is not None for each in rows)
            ended = {"finished": len(rows), "failed": failed, "wall_s": time.perf_counter() - began}
            store.describe({**self._manifest(), **ended, "table": TABLE})
        return rows, before

    def _replay(self, store: SweepStore, jobs: int | None, ray: str | None) -> None:
        missing = [index for index, key in enumerate(self.keys) if key not in store.results]
        modelled = [index for index in missing if self.points[index].prepared.backend == "modelled"]
        live = [index for index in missing if index not in set(modelled)]
        total = len(self.points)
        if len(missing) < total:
            self.out.note(f"{total - len(missing):,} of {total:,} points stored before")
        if modelled:
            where = f"the Ray cluster at {ray}" if ray else f"{min(jobs or cores(), len(modelled))} cores"
            self.out.detail(f"replaying {len(modelled):,} points on {where}")
        # Live replays would disturb each other's measurements: one after another, after all others.
        watched = partial(replayed, listener=Watching(self.out))
        rounds: list[_Round] = [(replayed, modelled, jobs, ray), (watched, live, 1, None)]
        with self.out.progress("sweeping", unit="points") as progress:
            progress(len(store.results), total)
            for replaying, chosen, at_once, cluster in rounds:
                items = [self.points[index] for index in chosen]
                if not items:
                    continue
                work = spread(replaying, items, self.traces, jobs=at_once, ray=cluster)
                with contextlib.closing(work) as results:
                    for place, result in results:
                        store.put(self.keys[chosen[place]], result)
                        progress(len(store.results), total)

    @contextlib.contextmanager
    def _reporting(self, store: SweepStore) -> Iterator[None]:
        """Report how to resume, if the block is interrupted: finished points are saved."""

        def sentence() -> str:
            done = f"{len(store.results):,} of {len(self.points):,} points are saved in {store.directory}"
            return f"{done}: the same call resumes there"

        try:
            yield
        except (KeyboardInterrupt, Terminated, UserError) as error:
            if not store.results:
                raise
            if isinstance(error, UserError):
                raise UserError("sweep-interrupted", f"{error}; {sentence()}") from error
            raise (Terminated if isinstance(error, Terminated) else Interrupted)(sentence()) from None

    def _manifest(self) -> dict[str, object]:
        """Return the sweep's manifest; `finished` is null until the end."""
        traces = {trace.meta.sha256: trace for trace in self.traces.values()}
        return {
            "identity": self.identity,
            "laminabench": {"version": __version__, "commit": git_commit()},
            "command": command_line(["laminabench", *sys.argv[1:]]),
            "traces": [
                {
                    **msgspec.structs.asdict(trace.meta),
                    "notes": list(trace.meta.notes),
                    "requests": len(trace),
                }
                for trace in traces.values()
            ],
            "costs": self._costs(),
            "host": to_json(host()),
            "points": len(self.points),
            "finished": None,
        }

    def _costs(self) -> Mapping[str, object]:
        """Return the cost sets of modelled points; `costs show` lists their coefficients."""
        costs_by_name = {}
        for point in self.points:
            costs = point.prepared.costs
            if costs is not None and costs.name not in costs_by_name:
                costs_by_name[costs.name] = {"title": costs.title, "sha256": self._digests[id(costs)]}
        return costs_by_name

    def _identity(self, point: Point) -> dict[str, object]:
        """Return all that a point's numbers depend on; `prepared` includes prices."""
        trace = self.traces[point.trace]
        meta = trace.meta
        return {
            "laminabench": describe(),
            "request": point.request.text(),
            "prepared": repr(point.prepared),
            "costs": self._digests.get(id(point.prepared.costs)),
            "trace": [meta.name, meta.source, meta.sha256, len(trace)],
        }


def _loaded(points: Sequence[Point], out: Output) -> Mapping[TraceKey, Trace]:
    """Load each trace once, check that each point's cut has requests, and note its facts once."""
    listener = Once(out)
    traces: dict[TraceKey, Trace] = {}
    files: dict[tuple[str, bool], Trace] = {}  # independent of the seed and the number of requests
    done = set()
    for point in points:
        key, transforms = point.trace, transforms_of(point.request)
        if key not in traces:
            traces[key] = files.get((key.name, key.offline)) or load_needed(
                key.name, transforms, listener, offline=key.offline, max_rows=point.request.max_rows
            )
            if traces[key].meta.source == "file":
                files[key.name, key.offline] = traces[key]
        if (key, transforms) not in done:
            done.add((key, transforms))
            try:
                cut(traces[key], transforms, listener)
            except UserError as error:
                raise error.within(f"point {point}") from error
        if note := point.prepared.deployment.describe().price_note:
            listener.note(note)
    return traces


def _digests(points: Sequence[Point]) -> Mapping[int, str]:
    """Return the digest of each cost set by its id(): points share them, and a digest takes a while."""
    sets = {id(costs): costs for point in points if (costs := point.prepared.costs) is not None}
    return {key: digest(costs) for key, costs in sets.items()}


def replayed(traces: Mapping[TraceKey, Trace], point: Point, listener: Listener = SILENT) -> Row:
    """Return the documented keys of the point's replay, or its error; runs in any process."""
    try:
        trace = cut(traces[point.trace], transforms_of(point.request), SILENT)
        result = run(point.request, trace=trace, listener=listener)
        result.require_complete()
    except (UserError, CheckFailedError) as error:
        return {**head(point.prepared), "error": str(error)}
    return cast("Row", json_safe(describe_replay(result, result.wall_s)))
