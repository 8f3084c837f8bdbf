"""A page with Runs that only a client saw, and with Runs that ended early."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.analysis.metrics import summarise
from laminabench.report.over_time import charts, in_service
from laminabench.report.page import page, report
from laminabench.report.seen import seen_tables
from laminabench.report.shown import caveats, shown
from laminabench.runs.manifest import Manifest, Partial
from laminabench.runs.read import Run, read_run
from laminabench.runs.status import FAILED
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.traces.table import Trace, TraceMeta

REQUESTS, CHUNKS = 20, 30
PARTIAL = Partial(why="the server is gone", at_s=3.2)
SeenRun = Callable[..., Run]


@pytest.fixture
def seen_run(
    tmp_path: Path, stream: Any, seen: Callable[..., Outcome], manifest_of: Callable[..., Manifest]
) -> SeenRun:
    """A Run against an endpoint: each request begins a tenth of a second after the one before."""

    def made(partial: Any = None) -> Run:
        rng = np.random.default_rng(2)
        streams = []
        for row in range(REQUESTS):
            ends = row / 10 + 0.3 + np.cumsum(rng.uniform(0.01, 0.03, CHUNKS))
            chunks = [
                (at_s, int(tokens)) for at_s, tokens in zip(ends, rng.integers(1, 4, CHUNKS), strict=True)
            ]
            streams.append(stream(row / 10, row / 10 + 0.002, chunks, attempts=2 if row == 3 else 1))
        streams[7].status, streams[7].error = FAILED, "<b>reset</b> by peer"
        streams[8].even = True
        outcome = seen(streams)
        made_tokens = [sum(tokens for _, tokens in each.chunks) for each in streams]
        trace = Trace(
            outcome.requests["arrival_s"], np.ones(REQUESTS, np.int32), np.array(made_tokens, np.int32),
            TraceMeta("small", sha256="ab" * 32),
        )  # fmt: skip
        summary = summarise(outcome, trace, mode="open", slo_tbt_ms=60.0, usd_per_hour=None)
        facts = manifest_of(
            trace,
            workload={"mode": "open", "concurrency": None, "policy": "fifo", "slo_tbt_ms": 60.0},
            system="openai",
            deployment={"name": "a url", "usd_per_hour": None, "power_w": None},
            backend="live",
            summary=summary,
            partial=partial,
        )
        directory = tmp_path / f"seen{len(list(tmp_path.iterdir()))}"
        write_run(directory, outcome, trace, facts)
        return read_run(directory)

    return made


def test_beside_another_run_it_shows_what_it_can(keep: Callable[..., Run], seen_run: SeenRun) -> None:
    runs = shown([seen_run(), keep("vllm")])
    found = page(report(runs, None, None))
    assert "As the client saw it" in found
    assert "A client cannot see the iterations of openai a url." in found
    assert "Where only a client saw a request it counts from its first chunk to its last." in found
    assert "&lt;b&gt;reset&lt;/b&gt; by peer" in found
    (kv,) = [chart for chart in charts(runs) if chart.key == "kv"]
    assert {trace["meta"]["run"] for trace in kv.traces} == {1}
    said = " ".join(caveats(runs))
    for words in (
        "openai a url has 1 requests that failed",
        "openai a url is of a server that does not say which tokens a chunk has",
        "some Runs saw their tokens in the engine and some as a client",
    ):
        assert words in said


def test_alone_it_has_no_chart_of_what_nobody_saw(seen_run: SeenRun) -> None:
    runs = shown([seen_run()])
    found = page(report(runs, None, None))
    assert [chart.key for chart in charts(runs)] == ["batch", "rate", "tbt-time"]
    for key in ("kv", "time", "timeline", "cost"):
        assert f'id="{key}"' not in found
    assert 'id="cdf"' in found
    assert "TTFT p50" in found


def test_its_tables_are_of_its_manifest(seen_run: SeenRun) -> None:
    (each,) = runs = shown([seen_run()])
    times, calls = seen_tables(runs)
    assert len(re.findall("<tr>", times)) == 1 + 5
    itl, tbt = each.summary.itl_ms.mean, each.summary.tbt_ms.mean
    assert itl > 1.5 * tbt
    assert f"<td>{itl:#.4g}</td>" in times
    assert f"<td>{tbt:#.4g}</td>" in times
    assert "Attempts</th><td>21</td>" in calls
    assert "of these, again</th><td>1</td>" in calls


def test_requests_in_service_are_those_that_stream(seen_run: SeenRun) -> None:
    outcome = seen_run().outcome
    assert outcome.chunks is not None
    found = in_service(outcome, "size", 5)
    moments = (np.arange(50_000) + 0.5) / 50_000 * outcome.end_s
    level = np.zeros(len(moments))
    for row in range(REQUESTS):
        at_s = outcome.chunks["at_s"][outcome.chunks["request"] == row]
        level += (moments >= at_s[0]) & (moments < at_s[-1])
    slices = level.reshape(5, -1)
    assert found.mean == pytest.approx(slices.mean(axis=1), rel=2e-3)
    assert found.most.tolist() == slices.max(axis=1).tolist()


def test_a_run_that_ended_early_is_called_partial_everywhere(
    keep: Callable[..., Run], seen_run: SeenRun
) -> None:
    runs = shown([keep(), seen_run(PARTIAL)])
    assert [each.name for each in runs] == ["lamina 2xh100+4xh20", "openai a url (PARTIAL)"]
    assert "openai a url (PARTIAL) ended after 3.2 s: the server is gone" in caveats(runs)
    found = page(report(runs, None, None))
    assert "openai a url (PARTIAL)" in found.split("</h3>")[1]
