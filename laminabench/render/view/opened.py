"""Runs that are looked at: read when it takes their tables, and kept for the next look."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from laminabench.render.shown import Shown, told_apart
from laminabench.render.view.folder import Found
from laminabench.render.view.index import Index
from laminabench.runs.manifest import Manifest
from laminabench.runs.read import Run, read_manifest, read_run
from laminabench.sim.outcome import Outcome
from laminabench.util.errors import UserError
from laminabench.workflows.compare.recorded import Recorded, of_manifest, of_run

MOST_RUNS = 200
# Of whole Runs some are kept in memory, those that were looked at last.
_KEPT = 24


def chosen(index: Index, keys: Sequence[str]) -> list[Found]:
    """The Runs of these keys, each once; a UserError where there are none, or not all."""
    keys = list(dict.fromkeys(keys))
    if not keys:
        raise UserError("view-no-runs", "no Run is selected: select some in the table of Runs")
    if len(keys) > MOST_RUNS:
        raise UserError("view-many-runs", f"{len(keys):,} Runs are selected: select at most {MOST_RUNS}")
    there = index.refreshed().found["run"]
    for key in keys:
        if key not in there:
            raise UserError("view-not-there", f"there is no Run at '{key}' in this folder: it may have gone")
    return [there[key] for key in keys]


def whole(found: Sequence[Found], slo_tbt_ms: float | None) -> list[Shown]:
    """With all tables, for charts."""
    limit = _limit(found, slo_tbt_ms)
    return told_apart([(_run(each), _recorded(each, limit)) for each in found])


def at_a_glance(found: Sequence[Found], slo_tbt_ms: float | None) -> list[Shown]:
    """For numbers alone: tables are read of those Runs only whose manifests do not tell all of them."""
    limit = _limit(found, slo_tbt_ms)
    return told_apart([_glance(each, limit) for each in found])


def _limit(found: Sequence[Found], slo_tbt_ms: float | None) -> float:
    return _manifest(found[0]).summary.slo.tbt_ms if slo_tbt_ms is None else slo_tbt_ms


def _glance(found: Found, limit: float) -> tuple[Run, Recorded]:
    manifest = _manifest(found)
    recorded = of_manifest(found.path, manifest, limit)
    if recorded is None:
        return _run(found), _recorded(found, limit)
    nothing = np.zeros(0, np.int32)
    return Run(found.path, manifest, _unread(manifest), nothing, nothing), recorded


def _unread(manifest: Manifest) -> Outcome:
    """No tables: who has it draws nothing from them."""
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


# A Run that was replaced by another is found anew, with another time.
@functools.lru_cache(maxsize=4 * MOST_RUNS)
def _manifest(found: Found) -> Manifest:
    return read_manifest(found.path)


@functools.lru_cache(maxsize=_KEPT)
def _run(found: Found) -> Run:
    return read_run(found.path)


@functools.lru_cache(maxsize=4 * MOST_RUNS)
def _recorded(found: Found, limit: float) -> Recorded:
    return of_run(_run(found), limit)


def forget() -> None:
    """As if none had been looked at: for who measures how long that takes."""
    for kept in (_manifest, _run, _recorded):
        kept.cache_clear()
