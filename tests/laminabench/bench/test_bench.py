"""The benchmarks run, report what they should, and judge themselves by their own numbers."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from laminabench.bench import attention, slab, traces
from laminabench.cli import bench_traces
from laminabench.cli.main import run


def test_slab_reports_every_call_and_judges_by_the_median() -> None:
    result = slab.run(seconds=0.01)
    rows = result["rows"]
    assert isinstance(rows, list)
    assert {row["operation"] for row in rows} == {"allocate", "extend", "release", "fork"}
    for row in rows:
        rates = row["allocations_per_s"]
        assert 0 < rates["min"] <= rates["median"] <= rates["max"]
        assert row["met"] == (rates["median"] >= slab.TARGET_PER_S if row["judged"] else None)


def test_attention_judges_by_the_median_share() -> None:
    result = attention.run(seconds=0.01, kv_bytes=1 << 20)
    rows = result["rows"]
    assert isinstance(rows, list)
    assert {row["order"] for row in rows} == {"consecutive", "interleaved", "random"}
    for row in rows:
        share = row["share"]
        assert 0 < share["min"] <= share["median"] <= share["max"]
        judged = row["dtype"] == "bfloat16" and row["order"] != "random"
        assert row["met"] == (share["median"] >= attention.TARGET_SHARE if judged else None)


def test_traces_measures_both_files() -> None:
    result = traces.run(csv_rows=2000, parquet_rows=3000, repeats=2)
    csv, parquet = result["csv"], result["parquet"]
    assert isinstance(csv, dict)
    assert isinstance(parquet, dict)
    assert (csv["rows"], parquet["rows"]) == (2000, 3000)
    assert parquet["peak_bytes"] > 10e6


@pytest.mark.parametrize(("ratio", "said"), [(2.0, "2.0 times slower"), (0.5, "2.0 times faster")])
def test_pandas_is_called_what_it_is(ratio: float, said: str) -> None:
    spread = {"median": 1.0, "min": 1.0, "max": 1.0}
    csv = {"rows": 1, "target_s": 1.0, "seconds": spread, "pandas_seconds": spread, "met": True}
    parquet = {
        "rows": 1,
        "target_s": 1.0,
        "seconds": spread,
        "peak_bytes": 1.0,
        "target_bytes": 1.0,
        "met": True,
    }
    console = Console(record=True, width=200, file=io.StringIO())
    bench_traces._render(
        console, {"csv": csv | {"speedup_over_pandas": spread | {"median": ratio}}, "parquet": parquet}
    )
    assert f"{said} than ours" in console.export_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "slab", "--seconds", "0.01"],
        ["bench", "attention", "--seconds", "0.01", "--kv-mb", "1"],
        ["bench", "traces", "--csv-rows", "1000", "--parquet-rows", "1000", "--repeats", "1"],
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_commands_print(arguments: list[str], as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run([*arguments, *(["--json"] if as_json else [])])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    if as_json:
        json.loads(out)
    else:
        assert "target" in out
