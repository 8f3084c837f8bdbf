"""The parts of a sweep: values that --vary says, the table of all points, what its directory keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.util.errors import UserError
from laminabench.workflows.sweep.rows import row, table, write
from laminabench.workflows.sweep.store import MANIFEST, POINTS, check, key_of, opened
from laminabench.workflows.sweep.values import parse_vary

IDENTITY = {"laminabench": "1 (commit a)", "vary": ["batches=1,2"], "flags": ["--trace", "t"], "points": "x"}
KEYS = ["a", "b", "c"]


def manifest(**other: Any) -> dict[str, Any]:
    return {"identity": {**IDENTITY, **other}, "finished": None}


def test_what_is_finished_is_found_again(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "sweep"
    with opened(place, manifest(), KEYS) as saved:
        assert saved.results == {}
        saved.put("a", {"mean_batch": 1.5})
        saved.put("c", {"error": "does not fit"})
    with opened(place, manifest(), KEYS) as saved:
        assert saved.results == {"a": {"mean_batch": 1.5}, "c": {"error": "does not fit"}}
        saved.forget_failed()
        assert list(saved.results) == ["a"]
        saved.describe({**manifest(), "finished": 3})
    assert json.loads((place / MANIFEST).read_text())["finished"] == 3


def test_a_damaged_point_is_none(tmp_path: Path) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as saved:
        saved.put("a", {"x": 1})
        saved.put("b", {"x": 2})
    (tmp_path / "sweep" / POINTS / "a.json").write_text('{"x": ')
    with opened(tmp_path / "sweep", manifest(), KEYS) as saved:
        assert saved.results == {"b": {"x": 2}}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"laminabench": "2"}, "by laminabench 1 (commit a): name another --out"),
        ({"vary": ["batches=1"]}, "with --vary batches=1,2: name"),
        ({"flags": []}, "with the flags --trace t: name"),
        ({}, "of a trace, a model or prices that have changed since: name"),
    ],
)
def test_another_sweep_is_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as saved:
        saved.put("a", {"x": 1})
    with (
        pytest.raises(UserError) as error,
        opened(tmp_path / "sweep", manifest(points="y", **other), KEYS),
    ):
        pass
    assert f"{tmp_path / 'sweep'} has another sweep, {message}" in str(error.value)
    with opened(tmp_path / "sweep", manifest(), KEYS) as saved:
        assert saved.results == {"a": {"x": 1}}


def test_the_same_points_said_otherwise_are_the_same_sweep(tmp_path: Path) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as saved:
        saved.put("a", {"x": 1})
    with opened(tmp_path / "sweep", manifest(vary=["batches=1..2"]), KEYS) as saved:
        assert list(saved.results) == ["a"]


def test_what_is_not_a_sweep_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(UserError, match="exists and is not a sweep"):
        check(tmp_path, IDENTITY)
    (tmp_path / MANIFEST).write_text('{"format": "something else"}')
    with pytest.raises(UserError, match="exists and is not a sweep"):
        check(tmp_path, IDENTITY)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        opened(tmp_path, manifest(), KEYS),
        pytest.raises(UserError, match="is in use"),
        opened(tmp_path, manifest(), KEYS),
    ):
        pass


def test_a_key_is_of_all_facts_in_any_order() -> None:
    assert key_of({"a": 1, "b": [2.5, None]}) == key_of({"b": [2.5, None], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


RESULT = {
    "deployment": "2xh100+4xh20",
    "throughput_tokens_per_s": 10.5,
    "mean_batches": [1.0, 2.0],
    "tbt_ms": {"p50": 1.0, "p99": None},
    "utilisation": {"whole_run": {"attention": 0.5, "replicas": [0.1]}},
    "cost": {"usd_per_hour": None},
    "facts": {"batches": 2},
    "simulation_s": 0.1,
    "run_dir": None,
}


def test_a_row_is_flat_and_has_what_was_varied_first_and_once() -> None:
    assert row({"batches": 2, "deployment": "2h100+4h20"}, RESULT) == {
        "batches": 2,
        "deployment": "2h100+4h20",
        "throughput_tokens_per_s": 10.5,
        "tbt_ms.p50": 1.0,
        "tbt_ms.p99": None,
        "utilisation.whole_run.attention": 0.5,
        "cost.usd_per_hour": None,
        "error": None,
    }


def test_points_that_failed_and_values_of_several_kinds(tmp_path: Path) -> None:
    rows = [
        row({"batches": 1, "x": 1}, {"error": "does not fit"}),
        row({"batches": "auto", "x": 2.5}, RESULT),
    ]
    write(rows, tmp_path / "sweep.parquet")
    result = pq.read_table(tmp_path / "sweep.parquet")
    assert result.column_names[:3] == ["batches", "x", "deployment"]
    assert result.column_names[-1] == "error"
    assert result["batches"].to_pylist() == ["1", "auto"]
    assert result["x"].to_pylist() == [1.0, 2.5]
    assert result["tbt_ms.p50"].to_pylist() == [None, 1.0]
    assert result["error"].to_pylist() == ["does not fit", None]
    assert result.schema.field("cost.usd_per_hour").type == pa.float64()
    assert result.equals(table(rows))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("batches=1,2,3", "batches", ["1", "2", "3"]),
        ("attention-workers=2..8", "attention-workers", ["2", "3", "4", "5", "6", "7", "8"]),
        ("seed=2..16:7,100", "seed", ["2", "9", "16", "100"]),
        ("--batches = 1, 2", "batches", ["1", "2"]),
        ('network=fhbn,"40us,42GB/s",60us\\,10GB/s', "network", ["fhbn", "40us,42GB/s", "60us,10GB/s"]),
        ("trace='a b.csv',\"2..8\"", "trace", ["a b.csv", "2..8"]),
        ("price=h100=2,h100=3.5", "price", ["h100=2", "h100=3.5"]),
        ("window=0:600,600:1200", "window", ["0:600", "600:1200"]),
        ("trace=../a.csv,a..b", "trace", ["../a.csv", "a..b"]),
    ],
)
def test_read(text: str, name: str, values: list[str]) -> None:
    result = parse_vary(text)
    assert (result.name, list(result.values), result.text) == (name, values, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batches", "write FLAG=VALUES"),
        ("=1,2", "write FLAG=VALUES"),
        ("batches=", "write FLAG=VALUES"),
        ("batches=1,,2", "a value is missing"),
        ("batches=1,", "a value is missing"),
        ("batches=8..2", "8..2 is no range"),
        ("batches=2..8:0", "2..8:0 is no range"),
        ("seed=1..999999999999", "more than 10,000 values"),
        ("seed=1..9000,10000..19000", "more than 10,000 values"),
        ('network="40us,1GB/s', 'the quotation that begins with " does not end'),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_vary(text)
    assert message in str(error.value)
    assert repr(text) in str(error.value)
