"""A cache of the Runs that pages show; tables are read only where needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from laminabench.render.shown import Shown, labelled
from laminabench.render.view.folder import Entry
from laminabench.render.view.index import Index
from laminabench.runs.manifest import Manifest
from laminabench.runs.read import Run, read_manifest, read_run
from laminabench.sim.outcome import Outcome
from laminabench.util.errors import UserError
from laminabench.workflows.compare.curves import Curve, curve_of_run
from laminabench.workflows.compare.recorded import Recorded, of_manifest, of_run

MOST_RUNS = 200
# The most recently shown Runs stay in memory with their tables.
_CACHED = 24


def chosen(index: Index, keys: Sequence[str]) -> list[Entry]:
    """Return the Runs of these keys without repetition; raise UserError if none or one is missing."""
    keys = list(dict.fromkeys(keys))
    if not keys:
        raise UserError("view-no-runs", "no Run is selected: select some in the table of Runs")
    if len(keys) > MOST_RUNS:
        raise UserError("view-many-runs", f"{len(keys):,} Runs are selected: select at most {MOST_RUNS}")
    there = index.refreshed().entries["run"]
    for key in keys:
        if key not in there:
            raise UserError("view-not-there", f"there is no Run at '{key}' in this folder")
    return [there[key] for key in keys]


def with_tables(entries: Sequence[Entry], slo_tbt_ms: float | None) -> list[Shown]:
    """Return Runs with all tables, for charts."""
    limit = _limit(entries, slo_tbt_ms)
    return labelled([(_run(each), _recorded(each, limit)) for each in entries])


def at_a_glance(entries: Sequence[Entry], slo_tbt_ms: float | None) -> list[Shown]:
    """Return Runs for numbers alone; tables are read only if a manifest lacks some."""
    limit = _limit(entries, slo_tbt_ms)
    return labelled([_glance(each, limit) for each in entries])


def _limit(entries: Sequence[Entry], slo_tbt_ms: float | None) -> float:
    return _manifest(entries[0]).summary.slo.tbt_ms if slo_tbt_ms is None else slo_tbt_ms


def _glance(entry: Entry, limit: float) -> tuple[Run, Recorded]:
    manifest = _manifest(entry)
    recorded = of_manifest(entry.path, manifest, limit)
    if recorded is None:
        return _run(entry), _recorded(entry, limit)
    nothing = np.zeros(0, np.int32)
    return Run(entry.path, manifest, _unread(manifest), nothing, nothing), recorded


def _unread(manifest: Manifest) -> Outcome:
    """Return an outcome without tables, for pages that draw no charts."""
    totals = manifest.totals
    return Outcome(
        requests={},
        iterations={},
        stints={},
        timeline={},
        replica_busy_s=np.zeros(0),
        attention_busy_s=0.0,
        end_s=totals.end_s if totals else 0.0,
        queue_empty_s=0.0,
        peak_kv_tokens=0,
        kv_capacity_tokens=0,
    )


# A replaced Run has another modification time, and so another key.
@functools.lru_cache(maxsize=4 * MOST_RUNS)
def _manifest(entry: Entry) -> Manifest:
    return read_manifest(entry.path)


@functools.lru_cache(maxsize=_CACHED)
def _run(entry: Entry) -> Run:
    return read_run(entry.path)


@functools.lru_cache(maxsize=4 * MOST_RUNS)
def _recorded(entry: Entry, limit: float) -> Recorded:
    return of_run(_run(entry), limit)


@functools.lru_cache(maxsize=4 * MOST_RUNS)
def curve(entry: Entry) -> Curve | None:
    """Return the curve of a Run, or None if it has none."""
    return curve_of_run(_run(entry))


def forget() -> None:
    """Empty the caches, to measure a first look."""
    for cached in (_manifest, _run, _recorded, curve):
        cached.cache_clear()
