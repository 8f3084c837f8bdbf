"""Runs that only a client saw or that ended early come back as they were, and older readers refuse them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.analysis.metrics import summarise
from laminabench.runs.format import FIRST_VERSION, FORMAT_VERSION
from laminabench.runs.manifest import Manifest, Partial
from laminabench.runs.read import read_manifest, read_run
from laminabench.runs.schema import TABLES
from laminabench.runs.status import DONE, FAILED, REJECTED, UNFINISHED
from laminabench.runs.summary import Requests, TimeShares, WorkerShares
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.traces.catalogue import sha256_of
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

ObserveRun = Callable[..., Outcome]
ManifestOf = Callable[..., Manifest]
PARTIAL = Partial(why="vLLM was killed by signal 9.", at_s=12.34)


def trace_of(rows: int) -> Trace:
    lengths = np.arange(1, rows + 1, dtype=np.int32)
    return Trace(np.zeros(rows), lengths, lengths, TraceMeta("small"))


@pytest.fixture(scope="session")
def streams(stream: Any) -> list[Any]:
    """One of each kind."""
    return [
        stream(0.0, 0.001, [(0.1, 1), (0.2, 3)], completion_counted=4, prompt_counted=1),
        stream(0.5, 0.75, [(1.0, 1)], FAILED, 3, error="the connection was reset, \u201cpeer\u201d said"),
        stream(0.5, 0.5, [], FAILED, 2, 503, even=True, error="503"),
        stream(math.nan, math.nan, [], UNFINISHED, 0, -1),
        stream(0.0, 0.0, [], REJECTED, 1, 400),
        stream(0.0, 0.0, [(0.1, 2), (0.1, 1)], DONE, even=True),
    ]


@pytest.fixture
def written(tmp_path: Path, observed: ObserveRun, streams: list[Any], manifest_of: ManifestOf) -> Path:
    write_run(
        tmp_path / "run", observed(streams, 2.0), trace_of(len(streams)), manifest_of(trace_of(len(streams)))
    )
    return tmp_path / "run"


def require_same(result: Outcome, outcome: Outcome, same_tables: Any) -> None:
    same_tables(result, outcome, ("requests", "iterations", "stints", "chunks", "calls"))
    assert math.isnan(result.attention_busy_s)
    assert np.isnan(result.replica_busy_s).tolist() == [True]
    assert (result.end_s, result.queue_empty_s) == (outcome.end_s, outcome.queue_empty_s)


def test_it_comes_back_as_it_was(
    written: Path, observed: ObserveRun, streams: list[Any], same_tables: Any
) -> None:
    outcome, trace = observed(streams, 2.0), trace_of(len(streams))
    run = read_run(written)
    require_same(run.outcome, outcome, same_tables)
    ours, theirs = (
        summarise(each, lengths, mode="open", slo_tbt_ms=1, usd_per_hour=2)
        for each, lengths in ((outcome, trace), (run.outcome, run))
    )
    assert ours == theirs
    # Unknown is null, in JSON and in the tables.
    totals = json.loads((written / "run.json").read_text())["totals"]
    assert (totals["replica_busy_s"], totals["attention_busy_s"]) == ([None], None)
    calls = pq.read_table(written / "calls.parquet")
    assert calls["sent_s"].null_count == 1
    assert calls["status_code"].to_pylist() == [200, 200, 503, None, 400, 200]
    assert calls["error"].to_pylist()[1].endswith("\u201cpeer\u201d said")
    for name in ("chunks", "calls"):
        fields = pq.read_schema(written / f"{name}.parquet")
        assert [field.name for field in fields] == [column.name for column in TABLES[name]]
        assert all(field.metadata[b"doc"] for field in fields)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 2**31 - 1)), max_size=4),
            st.sampled_from((DONE, FAILED, UNFINISHED)),
            st.text(max_size=8),
            st.booleans(),
            st.integers(-1, 2**40),
        ),
        max_size=6,
    )
)
def test_whatever_a_client_saw_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    stream: Any,
    observed: ObserveRun,
    manifest_of: ManifestOf,
    same_tables: Any,
    drawn: list[Any],
) -> None:
    streams = [
        stream(chunks=sorted(chunks), status=status, error=error, even=even, completion_counted=counted)
        for chunks, status, error, even, counted in drawn
    ]
    outcome = observed(streams)
    directory = tmp_path_factory.mktemp("seen") / "run"
    write_run(directory, outcome, trace_of(len(streams)), manifest_of(trace_of(len(streams))))
    require_same(read_run(directory).outcome, outcome, same_tables)


def test_equal_errors_are_not_unpacked(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file there is one of them, however many calls have it."""
    path = written / "calls.parquet"
    table = pq.read_table(path)
    errors = pa.array(["x" * 10_000] * len(table))
    table = table.set_column(table.column_names.index("error"), "error", errors)
    pq.write_table(table, path, compression="zstd")
    facts = json.loads((written / "run.json").read_text())
    del facts["crc32"]
    facts["tables"]["calls"]["sha256"] = sha256_of(path)
    (written / "run.json").write_text(json.dumps(facts))
    read_run(written)
    monkeypatch.setattr(safe_parse, "UNPACKED_BYTES", 1 << 14)
    monkeypatch.setattr(safe_parse, "UNPACKED_TIMES", 1)
    with pytest.raises(UserError, match="file-packed-too-well"):
        read_run(written)


# Which versions may read it


def test_only_what_older_readers_would_misread_is_of_a_newer_version(
    tmp_path: Path, observed: ObserveRun, streams: list[Any], manifest_of: ManifestOf
) -> None:
    outcome = observed(streams[:1])
    write_run(tmp_path / "seen", outcome, trace_of(1), manifest_of(trace_of(1)))
    plain = replace(outcome, chunks=None, calls=None)
    write_run(tmp_path / "plain", plain, trace_of(1), manifest_of(trace_of(1)))
    write_run(tmp_path / "partial", plain, trace_of(1), manifest_of(trace_of(1), partial=PARTIAL))
    failed = replace(observed(streams[1:2]), chunks=None, calls=None)
    write_run(tmp_path / "failed", failed, trace_of(1), manifest_of(trace_of(1)))
    result = {path.name: read_manifest(path).format_version for path in tmp_path.iterdir()}
    assert result == {
        "seen": FORMAT_VERSION,
        "plain": FIRST_VERSION,
        "partial": FORMAT_VERSION,
        "failed": FORMAT_VERSION,
    }
    # The first version's readers know three statuses, and look each name of the table up.
    names = pq.read_table(tmp_path / "plain" / "requests.parquet")["status"].chunk(0).dictionary
    assert names.to_pylist() == ["done", "rejected", "unfinished"]
    assert not (tmp_path / "plain" / "chunks.parquet").exists()
    assert read_run(tmp_path / "plain").outcome.chunks is None


# What is damaged


@pytest.mark.parametrize("name", ["chunks", "calls"])
def test_a_missing_or_damaged_table(written: Path, name: str, damaged: Any) -> None:
    damaged(written, name)


def with_column(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        return table.set_column(place, name, pa.array(values, table.schema.field(name).type))

    return change


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("calls", lambda table: table.slice(1)),
        ("calls", lambda table: table.drop_columns(["even"])),
        ("calls", with_column("error", [None] * 6)),
        ("chunks", with_column("request", [0, 5, 5, 0, 6])),
        ("chunks", with_column("request", [0, 5, 5, 0, None])),
        ("chunks", with_column("tokens", [1, 2, 1, 3, 0])),
        ("chunks", with_column("at_s", [0.1, 0.1, 0.1, 0.2, 0.15])),
        ("chunks", with_column("at_s", [0.1, 0.1, 0.1, 0.2, None])),
    ],
)
def test_another_programs_table(written: Path, rewritten: Any, table: str, change: Any) -> None:
    rewritten(written, table, change)


def test_chunks_without_calls(written: Path) -> None:
    facts = json.loads((written / "run.json").read_text())
    del facts["tables"]["calls"], facts["crc32"]
    (written / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="run-damaged"):
        read_run(written)


# What ended early


def test_a_partial_run_says_so(
    tmp_path: Path, observed: ObserveRun, streams: list[Any], manifest_of: ManifestOf
) -> None:
    facts = manifest_of(trace_of(1), partial=PARTIAL)
    write_run(tmp_path / "run", observed(streams[:1]), trace_of(1), facts)
    result = read_run(tmp_path / "run").manifest.partial
    assert result == PARTIAL
    assert result.ended == "ended after 12.3 s: vLLM was killed by signal 9"
    assert result.sentence == "PARTIAL, it ended after 12.3 s: vLLM was killed by signal 9"


@pytest.mark.parametrize("mode", ["saturate", "open", "closed"])
def test_a_partial_run_of_an_engine_that_reports_no_times(
    tmp_path: Path, mode: Any, manifest_of: ManifestOf
) -> None:
    """Two of four requests came, one of them was done; the workers' times are unknown."""
    nan, none = np.full(20, np.nan), np.zeros(0, np.int64)
    start_s = np.arange(20) * 0.01
    outcome = Outcome(
        requests={
            "arrival_s": np.array([0.0, 0.05, np.nan, np.nan]),
            "admitted_s": np.array([0.0, 0.05, np.nan, np.nan]),
            "first_token_s": np.array([0.01, 0.06, np.nan, np.nan]),
            "finished_s": np.array([np.nan, 0.1, np.nan, np.nan]),
            "first_iteration": np.array([0, 5, -1, -1]),
            "last_iteration": np.array([19, 9, -1, -1]),
            "batch": np.array([0, 0, -1, -1], np.int32),
            "preemptions": np.zeros(4, np.int32),
            "status": np.array([UNFINISHED, DONE, UNFINISHED, UNFINISHED], np.int8),
        },
        iterations={
            "batch": np.zeros(20, np.int32), "iteration": np.arange(20), "start_s": start_s,
            "duration_s": np.full(20, 0.01), "size": np.array([1] * 5 + [2] * 5 + [1] * 10, np.int32),
            "joined": np.array([1, 0, 0, 0, 0, 1] + [0] * 14, np.int32), "kv_tokens": np.arange(20),
            **dict.fromkeys(("model_s", "attention_s", "network_s", "host_s"), nan),
        },
        stints=dict.fromkeys(("request", "batch", "first_iteration", "last_iteration"), none),
        timeline={}, replica_busy_s=np.array([np.nan]), attention_busy_s=math.nan, end_s=0.2,
        queue_empty_s=0.2, peak_kv_tokens=9, kv_capacity_tokens=100,
    )  # fmt: skip
    trace = trace_of(4)
    summary = summarise(outcome, trace, mode=mode, slo_tbt_ms=9, usd_per_hour=1)
    write_run(tmp_path / "run", outcome, trace, manifest_of(trace, partial=PARTIAL, summary=summary))
    run = read_run(tmp_path / "run")
    result = summarise(run.outcome, run, mode=mode, slo_tbt_ms=9, usd_per_hour=1)
    assert result == run.manifest.summary == summary
    assert result.requests == Requests(completed=1, unfinished=3)
    assert result.tokens_generated == 25
    assert result.time_shares == TimeShares()
    assert result.utilisation.whole_run == WorkerShares(replicas=[None], attention=None)
