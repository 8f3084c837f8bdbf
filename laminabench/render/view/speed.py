"""The benchmark of the explorer: first and later looks at ten thousand Runs, and a comparison."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from starlette.datastructures import QueryParams

from laminabench.bench.frame import QUIET, Report, Watcher, seconds_of, timed, times_report
from laminabench.render.view import opened
from laminabench.render.view.compare_page import MOST_CHARTED, compare_page
from laminabench.render.view.index import Index
from laminabench.render.view.page import Page, document
from laminabench.render.view.table_page import table_page
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.format import MANIFEST
from laminabench.workflows.replay.run import run as replay

LIST_TARGET_S, COMPARE_TARGET_S = 1.0, 2.0
COMPARED = 100
REQUESTS = 2_000


def run(runs: int = 10_000, repeats: int = 3, watcher: Watcher = QUIET) -> Report:
    """Time the pages over this many Runs in a temporary folder."""
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        watcher.note(f"making {runs:,} Runs to look at")
        keys = _make(Path(folder), runs)
        for done in range(repeats):
            watcher.progress(done, repeats)
            for what, seconds in _look(Path(folder), keys[:COMPARED]).items():
                took.setdefault(what, []).append(seconds)
        watcher.progress(repeats, repeats)
    compared = min(COMPARED, runs)
    rows = [
        timed(f"the first list of {runs:,} Runs", took["first"], LIST_TARGET_S),
        timed("the list again, in another order", took["again"], LIST_TARGET_S),
        timed("the first search in all fields", took["search"], None),
        timed("the next one", took["searched"], None),
        timed(f"{compared} Runs side by side", took["compared"], COMPARE_TARGET_S),
        timed(f"then the charts of {min(MOST_CHARTED, compared)}", took["charts"], None),
    ]
    note = f"Runs of {REQUESTS:,} requests; their files had just been written, so no disk was waited for"
    return times_report("view", rows, note)


def _look(folder: Path, compared: Sequence[str]) -> dict[str, float]:
    """Time each page with empty caches, until it could be sent."""
    index, several = Index(folder), [("run", key) for key in compared]
    opened.forget()
    table, compare = partial(table_page, index), partial(compare_page, index)
    pages = {
        "first": partial(table, QueryParams("")),
        "again": partial(table, QueryParams("sort=tbt_ms.p99")),
        "search": partial(table, QueryParams("q=saturate host.cores>0")),
        "searched": partial(table, QueryParams("q=lamina request.num-requests>0")),
        "compared": partial(compare, QueryParams(several)),
        "charts": partial(compare, QueryParams([*several, ("part", "charts")])),
    }
    return {what: seconds_of(partial(_sent, page)) for what, page in pages.items()}


def _sent(page: partial[Page]) -> str:
    return document(page(), "", [])


def _make(folder: Path, runs: int) -> list[str]:
    """Make one Run and copies of its tables, each with its own throughput in the manifest."""
    first = folder / "run-00000"
    replay(
        ReplayRequest(
            trace="profile:azure-conv", num_requests=REQUESTS, system="lamina", directory=str(first)
        )
    )
    manifest = json.loads((first / MANIFEST).read_text(encoding="utf-8"))
    manifest.pop("crc32", None)  # would differ in each copy
    tables = sorted(first.glob("*.parquet"))
    for number in range(1, runs):
        other = folder / f"run-{number:05}"
        other.mkdir()
        for table in tables:
            os.link(table, other / table.name)
        manifest["summary"]["throughput_tokens_per_s"] += 1
        (other / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return [f"run-{number:05}" for number in range(runs)]
