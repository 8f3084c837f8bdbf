"""The table of a sweep."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from laminabench.sweeps.rows import row, table, write

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
    found = pq.read_table(tmp_path / "sweep.parquet")
    assert found.column_names[:3] == ["batches", "x", "deployment"]
    assert found.column_names[-1] == "error"
    assert found["batches"].to_pylist() == ["1", "auto"]
    assert found["x"].to_pylist() == [1.0, 2.5]
    assert found["tbt_ms.p50"].to_pylist() == [None, 1.0]
    assert found["error"].to_pylist() == ["does not fit", None]
    assert found.schema.field("cost.usd_per_hour").type == pa.float64()
    assert found.equals(table(rows))
