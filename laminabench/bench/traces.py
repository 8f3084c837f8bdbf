"""How fast traces load: a million-row Azure CSV beside pandas, and a parquet of a week of requests."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv

from laminabench.bench.timing import seconds_of, spread
from laminabench.traces.catalogue import find
from laminabench.traces.formats import load_file
from laminabench.traces.profile_file import read_profile
from laminabench.traces.store import save
from laminabench.traces.synth import synthesise

CSV_TARGET_S = 1.0
PARQUET_TARGET_S = 5.0
PARQUET_TARGET_BYTES = 2e9

# In a process of its own, so that the peak memory is the load's and nobody else's.
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


def run(csv_rows: int, parquet_rows: int, repeats: int = 5) -> dict[str, object]:
    """Times as medians over alternating repeats, targets beside them."""
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        csv_file = Path(folder) / "azure.csv"
        _write_azure_csv(csv_file, csv_rows)
        parquet_file = Path(folder) / "week.parquet"
        save(synthesise(read_profile(find("azure-2024-conv").profile_path), parquet_rows), parquet_file)
        return {
            "csv": _measure_csv(csv_file, csv_rows, repeats),
            "parquet": _measure_parquet(parquet_file, repeats),
        }


def _measure_csv(path: Path, rows: int, repeats: int) -> dict[str, object]:
    ours, pandas = [], []
    for _ in range(repeats):
        ours.append(seconds_of(lambda: load_file(path)))
        pandas.append(seconds_of(lambda: _pandas_load(path)))
    ratios = [theirs / mine for mine, theirs in zip(ours, pandas, strict=True)]
    return {
        "rows": rows,
        "bytes": path.stat().st_size,
        "seconds": spread(ours),
        "pandas_seconds": spread(pandas),
        "speedup_over_pandas": spread(ratios),
        "target_s": CSV_TARGET_S,
        "met": statistics.median(ours) <= CSV_TARGET_S,
    }


def _measure_parquet(path: Path, repeats: int) -> dict[str, object]:
    runs = []
    for _ in range(repeats):
        child = subprocess.run(
            [sys.executable, "-c", _OPEN_PARQUET, str(path)], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(child.stdout))
    seconds = [run["seconds"] for run in runs]
    peak = max(run["peak_bytes"] for run in runs)
    return {
        "rows": runs[0]["rows"],
        "bytes": path.stat().st_size,
        "seconds": spread(seconds),
        "peak_bytes": peak,
        "target_s": PARQUET_TARGET_S,
        "target_bytes": PARQUET_TARGET_BYTES,
        "met": statistics.median(seconds) <= PARQUET_TARGET_S and peak <= PARQUET_TARGET_BYTES,
    }


def _write_azure_csv(path: Path, rows: int) -> None:
    """A file in the publisher's format with the profile's lengths and rate."""
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
