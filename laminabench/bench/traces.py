"""Benchmark of loading traces: a million-row Azure CSV compared with pandas, and a parquet of a week."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv

from laminabench.bench.frame import QUIET, Report, Row, Watcher, in_turns, ratios, seconds_of, spread
from laminabench.traces.catalogue import find
from laminabench.traces.formats import load_file
from laminabench.traces.profile import read_profile
from laminabench.traces.store import save
from laminabench.traces.synth import synthesise
from laminabench.util.child_environment import child_environment

LONGEST_S = 3600.0  # limit for a measuring process
CSV_TARGET_S = 1.0
PARQUET_TARGET_S = 5.0
PARQUET_TARGET_BYTES = 2e9

# In a process of its own, so that the peak memory is the load's alone.
_OPEN_PARQUET = """
import json, resource, sys, time
from pathlib import Path
from laminabench.traces.formats import load_file
start = time.perf_counter()
rows = len(load_file(Path(sys.argv[1])))
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"rows": rows, "seconds": seconds, "peak_bytes": peak}))
"""


def run(csv_rows: int, parquet_rows: int, repeats: int = 5, watcher: Watcher = QUIET) -> Report:
    """Write both files, then load them repeatedly."""
    watcher.note(f"writing {csv_rows:,} CSV rows and {parquet_rows:,} parquet rows to measure with")
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        csv_file = Path(folder) / "azure.csv"
        _write_azure_csv(csv_file, csv_rows)
        parquet_file = Path(folder) / "week.parquet"
        save(synthesise(read_profile(find("azure-2024-conv").profile_path), parquet_rows), parquet_file)
        csv, parquet = _measure_csv(csv_file, csv_rows, repeats), _measure_parquet(parquet_file, repeats)
    lines = [(str(row.cells[0]), row.met) for row in (csv, parquet)]
    return Report({"csv": csv, "parquet": parquet}, [lines[0], str(csv.cells[1]), lines[1]])


def _measure_csv(path: Path, rows: int, repeats: int) -> Row:
    loads = {"ours": lambda: load_file(path), "pandas": lambda: _pandas_load(path)}
    took = in_turns({name: partial(seconds_of, load) for name, load in loads.items()}, repeats)
    ours, pandas, ratio = spread(took["ours"]), spread(took["pandas"]), ratios(took["pandas"], took["ours"])
    facts = {
        "rows": rows,
        "bytes": path.stat().st_size,
        "seconds": ours,
        "pandas_seconds": pandas,
        "speedup_over_pandas": ratio,
        "target_s": CSV_TARGET_S,
    }
    line = f"csv      {rows:>12,} rows  {ours.text(_seconds)}  target {CSV_TARGET_S:g} s"
    comparison = (
        f"         pandas.read_csv in the same run {pandas.text(_seconds)}: {than_ours(ratio.median)}"
    )
    return Row(facts, (line, comparison), ours.median <= CSV_TARGET_S)


def than_ours(ratio: float) -> str:
    faster = f"{ratio:.1f} times slower" if ratio >= 1 else f"{1 / ratio:.1f} times faster"
    return f"{faster} than ours"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s"


def _measure_parquet(path: Path, repeats: int) -> Row:
    runs = []
    for _ in range(repeats):
        child = subprocess.run(
            [sys.executable, "-c", _OPEN_PARQUET, str(path)],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=LONGEST_S,
        )
        runs.append(json.loads(child.stdout))
    took, rows = spread([run["seconds"] for run in runs]), runs[0]["rows"]
    peak = max(run["peak_bytes"] for run in runs)
    facts = {
        "rows": rows,
        "bytes": path.stat().st_size,
        "seconds": took,
        "peak_bytes": peak,
        "target_s": PARQUET_TARGET_S,
        "target_bytes": PARQUET_TARGET_BYTES,
    }
    line = (
        f"parquet  {rows:>12,} rows  {took.text(_seconds)}  target {PARQUET_TARGET_S:g} s, "
        f"peak {peak / 1e9:.2f} GB of {PARQUET_TARGET_BYTES / 1e9:g} GB"
    )
    return Row(facts, (line,), took.median <= PARQUET_TARGET_S and peak <= PARQUET_TARGET_BYTES)


def _write_azure_csv(path: Path, rows: int) -> None:
    """Write a file in the publisher's format with the profile's lengths and rate."""
    trace = synthesise(read_profile(find("azure-conv").profile_path), rows)
    start = np.datetime64("2023-11-16T18:15:46", "ns")
    stamps = start + (trace.arrival_s * 1e9).astype("timedelta64[ns]")
    text = np.char.replace(np.datetime_as_string(stamps, unit="ns"), "T", " ")
    table = pa.table(
        {
            # The publisher writes seven digits of a second.
            "TIMESTAMP": pa.array(text.astype("<U27")),
            "ContextTokens": trace.prompt_tokens,
            "GeneratedTokens": trace.output_tokens,
        }
    )
    pa_csv.write_csv(table, path, pa_csv.WriteOptions(quoting_style="none"))


def _pandas_load(path: Path) -> None:
    import pandas

    pandas.read_csv(path, parse_dates=["TIMESTAMP"])
