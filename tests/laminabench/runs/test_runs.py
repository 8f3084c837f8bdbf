"""Runs are written whole or not at all, the same for the same input, and come back as they were."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.analysis.metrics import summarise
from laminabench.runs import replace, write
from laminabench.runs.format import FIRST_VERSION, FORMAT, FORMAT_VERSION, MANIFEST, sha256_of
from laminabench.runs.manifest import Manifest
from laminabench.runs.read import read_manifest, read_run
from laminabench.runs.schema import TABLES
from laminabench.runs.status import DONE, REJECTED, UNFINISHED, statuses
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Admission, Spec, Timing
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

MOST = 16
ManifestOf = Callable[..., Manifest]


def small(admission: Admission = "grow", seed: int = 0, rows: int = 60) -> tuple[Trace, Outcome]:
    """A replay with a rejected request and, where memory grows on demand, preempted ones."""
    rng = np.random.default_rng(seed)
    trace = Trace(
        np.sort(rng.integers(0, 100, rows)) * 1e-3,
        np.append(rng.integers(1, 20, rows - 1), 500).astype(np.int32),
        rng.integers(1, 30, rows).astype(np.int32),
        TraceMeta("small", sha256="ab" * 32, notes=("made here",)),
    )
    flat = np.full(MOST + 1, 1e-4)
    timing = Timing(flat, flat, flat, flat, flat * 1e-3, q_transfer=1e-5, out_transfer=1e-5)
    spec = Spec(
        2,
        timing,
        tokens_per_pool=100,
        max_requests=MOST,
        batches=2,
        pipelining="rotational",
        admission=admission,
    )
    return trace, simulate(trace, spec, Offered(), check=True)


@pytest.fixture
def manifest_small(manifest_of: ManifestOf) -> ManifestOf:
    """The same for every small Run, changed as named."""
    return partial(
        manifest_of,
        transforms={"num_requests": 60, "window": (5.0, float("inf"))},
        coefficients=[{"name": "c", "value": 1.0, "source": "a table"}],
        command=["laminabench", "replay", "--trace", "a trace"],
    )


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("admission", ["reserve", "grow"])
def test_a_run_comes_back_as_it_was(
    tmp_path: Path, admission: Admission, manifest_small: ManifestOf, same_tables: Any
) -> None:
    trace, outcome = small(admission)
    summary = summarise(outcome, trace, mode="saturate", slo_tbt_ms=1, usd_per_hour=2)
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace, summary=summary))
    run = read_run(tmp_path / "run")
    same_tables(run.outcome, outcome, ("requests", "iterations", "stints"))
    assert run.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert run.output_tokens.tolist() == trace.output_tokens.tolist()
    assert run.manifest.summary == summary
    # What is computed from the directory is what was computed from the simulation.
    assert summarise(run.outcome, run, mode="saturate", slo_tbt_ms=1, usd_per_hour=2) == summary
    assert run.outcome.requests["status"].tolist() == [DONE] * 59 + [REJECTED]
    assert (tmp_path / "run" / "stints.parquet").exists() == (admission == "grow")
    assert outcome.requests["preemptions"].any() == (admission == "grow")


def test_the_tables_are_for_others_to_read_too(tmp_path: Path, manifest_small: ManifestOf) -> None:
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace))
    requests = pq.read_table(tmp_path / "run" / "requests.parquet")
    assert requests.column_names == [column.name for column in TABLES["requests"]]
    assert requests["status"].to_pylist() == ["done"] * 59 + ["rejected"]
    assert requests["finished_s"].to_pylist()[-1] is None  # neither NaN nor -1
    assert requests["batch"].null_count == requests["first_iteration"].null_count == 1
    for field in requests.schema:
        assert field.metadata[b"doc"]


def test_equal_runs_are_equal_files(tmp_path: Path, manifest_small: ManifestOf) -> None:
    for name in ("one", "two"):
        trace, outcome = small()
        write_run(tmp_path / name, outcome, trace, manifest_small(trace))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    write_run(tmp_path / "two", outcome, trace, manifest_small(trace))
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_the_manifest_says_what_the_run_is_the_result_of(tmp_path: Path, manifest_small: ManifestOf) -> None:
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace))
    result = read_manifest(tmp_path / "run")
    assert (result.format, result.format_version) == (FORMAT, FIRST_VERSION)
    assert result.command == "laminabench replay --trace 'a trace'"
    assert (result.trace.sha256, result.trace.notes) == ("ab" * 32, ("made here",))
    assert result.trace.requests == 60
    assert result.transforms == {"num_requests": 60, "window": [5.0, None]}
    assert result.coefficients == [{"name": "c", "value": 1.0, "source": "a table"}]
    assert result.tables["requests"].rows == 60
    assert result.tables["stints"].rows == len(outcome.stints["request"])


def test_statuses_of_a_run_that_was_stopped() -> None:
    _, outcome = small()
    outcome.requests["finished_s"][0] = np.nan
    assert statuses(outcome)[0] == UNFINISHED
    outcome.requests["status"] = np.full(60, UNFINISHED, np.int8)
    assert set(statuses(outcome)) == {UNFINISHED}


# Whole or not at all


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("old", [False, True])
def test_a_failure_in_the_middle_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    old: bool,
    manifest_small: ManifestOf,
) -> None:
    trace, outcome = small()
    if old:
        write_run(tmp_path / "run", outcome, trace, manifest_small(trace, seed=1))
    before = files(tmp_path / "run") if old else None
    real = write._write_table

    def fail_at_the_second(path: Path, *rest: Any) -> None:
        real(path, *rest)
        if path.stem == "iterations":
            raise error("no more")

    monkeypatch.setattr(write, "_write_table", fail_at_the_second)
    with pytest.raises(UserError if error is OSError else error, match="no more"):
        write_run(tmp_path / "run", outcome, trace, manifest_small(trace, seed=2))
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if old else [])
    if old:
        assert files(tmp_path / "run") == before


@pytest.mark.parametrize("exchange", [True, False])
def test_a_run_replaces_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, manifest_small: ManifestOf
) -> None:
    if not exchange:
        monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace, seed=1))
    (tmp_path / "link").symlink_to("run")
    trace, outcome = small("reserve")
    write_run(tmp_path / "link", outcome, trace, manifest_small(trace, seed=2))
    assert read_manifest(tmp_path / "run").seed == 2
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "run.json",
        "requests.parquet",
        "iterations.parquet",  # and not the stints of the one before
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "run"]
    assert (tmp_path / "link").is_symlink()


def test_without_an_exchange_a_failing_rename_puts_the_old_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest_small: ManifestOf
) -> None:
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace, seed=1))
    monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    real, calls = Path.rename, []

    def fail_the_second_time(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fail_the_second_time)
    with pytest.raises(UserError, match="file-not-writable"):
        write_run(tmp_path / "run", outcome, trace, manifest_small(trace, seed=2))
    assert read_manifest(tmp_path / "run").seed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("content", [{"notes.txt": "mine"}, {"run.json": "{}"}, {"run.json": "not json"}])
def test_what_is_not_a_run_is_left_alone(
    tmp_path: Path, content: dict[str, str], manifest_small: ManifestOf
) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    for name, text in content.items():
        (target / name).write_text(text)
    before = files(target)
    with pytest.raises(UserError, match="output-exists"):
        write_run(target, small()[1], small()[0], manifest_small(small()[0]))
    assert files(target) == before


def test_a_file_in_the_way_and_an_empty_directory(tmp_path: Path, manifest_small: ManifestOf) -> None:
    trace, outcome = small()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="output-exists"):
        write_run(tmp_path / "file", outcome, trace, manifest_small(trace))
    with pytest.raises(UserError, match="file-not-writable"):
        write_run(tmp_path / "file" / "run", outcome, trace, manifest_small(trace))
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "empty", outcome, trace, manifest_small(trace))
    assert read_run(tmp_path / "empty").directory == tmp_path / "empty"
    reference = tmp_path / "reference"
    reference.mkdir()
    assert (tmp_path / "empty").stat().st_mode == reference.stat().st_mode


# Reading what is not whole


@pytest.fixture
def written(tmp_path: Path, manifest_small: ManifestOf) -> Path:
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace))
    return tmp_path / "run"


def edit_manifest(directory: Path, **changes: Any) -> None:
    result = json.loads((directory / "run.json").read_text())
    del result["crc32"]
    (directory / "run.json").write_text(json.dumps(result | changes))


def test_not_a_run(tmp_path: Path, written: Path) -> None:
    with pytest.raises(UserError, match="run-not-a-run"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="run-not-a-run"):
        read_run(tmp_path / "nowhere")
    edit_manifest(written, format="something else")
    with pytest.raises(UserError, match="run-not-a-run"):
        read_run(written)


def test_a_newer_format(written: Path) -> None:
    edit_manifest(written, format_version=FORMAT_VERSION + 1)
    with pytest.raises(UserError, match="run-format-newer"):
        read_run(written)


def test_times_that_no_replay_has_are_damage(written: Path) -> None:
    path = written / "iterations.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("start_s")
    late = pa.array([1e18] * len(table))
    pq.write_table(table.set_column(place, table.schema.field(place), late), path)
    tables = json.loads((written / MANIFEST).read_text())["tables"]
    edit_manifest(written, tables=tables | {"iterations": {"rows": len(table), "sha256": sha256_of(path)}})
    with pytest.raises(UserError, match=r"start_s has times"):
        read_run(written)


@pytest.mark.parametrize("late", [{"end_s": 1e30}, {"queue_empty_s": -1e30}, {"requests": 1e30}])
def test_what_would_be_refused_is_never_written(
    tmp_path: Path, manifest_small: ManifestOf, late: dict[str, float]
) -> None:
    trace, outcome = small()
    if "requests" in late:
        outcome.requests["arrival_s"][-1] = late["requests"]
    else:
        outcome = dataclasses.replace(outcome, **late)
    with pytest.raises(UserError, match="run-impossible"):
        write_run(tmp_path / "run", outcome, trace, manifest_small(trace))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [MANIFEST, "requests.parquet"])
def test_what_may_never_end_is_not_waited_for(written: Path, name: str) -> None:
    (written / name).unlink()
    os.mkfifo(written / name)
    with pytest.raises(UserError, match="file-is-pipe"):
        read_run(written)


@pytest.mark.parametrize("name", ["requests", "iterations", "stints"])
def test_a_missing_or_damaged_table(written: Path, name: str, damaged: Any) -> None:
    damaged(written, name)


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        ("totals", {}),
        ("totals.replica_busy_s", []),
        ("totals.peak_kv_tokens", "many"),
        ("totals", {"replica_busy_s": [1.0]}),
        ("tables", {}),
        ("tables", None),
        ("tables", {"requests": 60}),
        ("format_version", "x"),
        ("summary.tbt_ms.p99", ...),
        ("summary.tbt_ms.max", "fast"),
        ("summary.time_shares.model", math.nan),
        ("summary.time_shares", ...),
        ("summary.requests.unfinished", {}),
        ("summary.window.end_s", "late"),
        ("summary.cost", ...),
        ("summary.ttft_ms", "fast"),
        ("summary.queueing_s", {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": "fast", "max": 1.0}),
        ("summary.attempts", {"sent": 1.5, "retried": 0, "failed": 0}),
        ("summary.attempts", {"sent": 1, "retried": 0, "failed": 0, "by_error": ["reset"]}),
        ("request", "zqx"),
        ("request", "a = [" * 200),
        ("coefficients", 5),
        ("coefficients", ["gemm"]),
        ("deployment.devices", [{"count": 1}]),
        ("model", {}),
        ("host", ...),
        ("workload.options", -1),
        ("workload.slo_tbt_ms", None),
        *(("partial", odd) for odd in (True, "yes", {"why": None}, {"at_s": "late"}, [1])),
    ],
)
def test_a_damaged_manifest(written: Path, place: str, instead: Any) -> None:
    *around, name = place.split(".")
    document = json.loads((written / "run.json").read_text())
    inner = document
    for key in around:
        inner = inner[key]
    inner[name] = instead
    if instead is ...:
        del inner[name]
    del document["crc32"]
    (written / "run.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="run-damaged"):
        read_run(written)


def test_another_programs_table(written: Path, rewritten: Any) -> None:
    rewritten(written, "requests", lambda table: table.drop_columns(["batch"]))


def test_a_run_of_very_many_equal_rows_is_not_made_room_for(
    tmp_path: Path, manifest_small: ManifestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_parse, "UNPACKED_BYTES", 1 << 20)
    trace, outcome = small()
    write_run(tmp_path / "run", outcome, trace, manifest_small(trace))
    path, manifest = tmp_path / "run" / "iterations.parquet", tmp_path / "run" / MANIFEST
    rows, table = 1 << 18, pq.read_table(path)
    pq.write_table(table.take([0] * rows), path, compression="zstd")
    facts = json.loads(manifest.read_text())
    del facts["crc32"]
    for message, code in ((rows, "run-packed-too-well"), (rows - 1, "run-damaged")):
        facts["tables"]["iterations"] = {"rows": message, "sha256": sha256_of(path)}
        manifest.write_text(json.dumps(facts))
        with pytest.raises(UserError, match=code):
            read_run(tmp_path / "run")


def test_a_number_that_is_another_is_damage(written: Path) -> None:
    path = written / MANIFEST
    text = path.read_text()
    path.write_text(text.replace('"seed": 7', '"seed": 6', 1))
    assert path.read_text() != text
    with pytest.raises(UserError, match="run-damaged"):
        read_run(written)
    path.write_text(json.dumps(json.loads(text)))  # in other words, the same
    read_run(written)
