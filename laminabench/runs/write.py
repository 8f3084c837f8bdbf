"""Write a Run: tables first, manifest last; the directory gets its name when all is complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from laminabench.runs.format import (
    FIRST_VERSION,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    manifest_in,
    sealed,
    sha256_of,
)
from laminabench.runs.manifest import Manifest, Table, Totals
from laminabench.runs.read import Run, problems
from laminabench.runs.replace import replacing_directory, require_replaceable
from laminabench.runs.schema import FLAG, OPTIONAL, STATUS, TABLES, TEXT, Column, schema
from laminabench.runs.status import FAILED, STATUSES, statuses
from laminabench.sim.outcome import Columns, Outcome
from laminabench.traces.arrow import array_of, texts_of
from laminabench.traces.table import Trace
from laminabench.util import parquet
from laminabench.util.errors import UserError
from laminabench.util.json import as_number

# Rows of a row group, which is in memory twice.
_ROWS = 1 << 20


def write_run(
    directory: Path,
    outcome: Outcome,
    trace: Trace | Run,
    manifest: Manifest,
    extra: Mapping[str, bytes] | None = None,
) -> None:
    """Write the Run, replacing an existing Run. Anything else there is left alone, with a UserError.

    `trace` is the replayed trace, or a Run that is written again; only its lengths are needed.
    `extra`: further files to store with it, by name; they are never read.
    """
    check_replaceable(directory)
    tables: dict[str, Columns] = {
        "requests": {
            **outcome.requests,
            "prompt_tokens": trace.prompt_tokens,
            "output_tokens": trace.output_tokens,
            "status": statuses(outcome),
        },
        "iterations": outcome.iterations,
    }
    if len(outcome.stints["request"]):
        tables["stints"] = outcome.stints
    if outcome.chunks is not None and outcome.calls is not None:
        tables |= {"chunks": outcome.chunks, "calls": outcome.calls}
    # Readers that do not know these tables leave them out, and read the others as they are.
    for name in OPTIONAL:
        if (table := getattr(outcome, name)) is not None:
            tables[name] = table
    sums = None
    if (tally := outcome.tally) is not None:
        tables["tally"] = {name: tally[name] for name in ("gap_s", "gap_tokens")}
        sums = {name: value for name, value in tally.items() if name not in tables["tally"]}
    totals = Totals(
        replica_busy_s=outcome.replica_busy_s.tolist(),
        attention_busy_s=outcome.attention_busy_s,
        end_s=outcome.end_s,
        queue_empty_s=outcome.queue_empty_s,
        peak_kv_tokens=int(outcome.peak_kv_tokens),
        kv_capacity_tokens=int(outcome.kv_capacity_tokens),
        tally=sums,
    )
    for file, why in problems(tables, totals):
        raise UserError("run-impossible", f"{directory} is not written, as {file} would be damaged: {why}")
    written: dict[str, Table] = {}
    with replacing_directory(directory) as temporary:
        for name, columns in tables.items():
            path = temporary / f"{name}.parquet"
            rows = _write_table(path, TABLES[name], columns)
            written[name] = Table(rows=rows, sha256=sha256_of(path))
        for name, content in (extra or {}).items():
            (temporary / name).write_bytes(content)
        complete = msgspec.structs.replace(
            manifest, format_version=_version(tables, manifest), totals=totals, tables=written
        )
        # NaN and infinity become null.
        document = sealed(msgspec.json.decode(msgspec.json.encode(complete, enc_hook=as_number)))
        text = msgspec.json.format(msgspec.json.encode(document), indent=2)
        (temporary / MANIFEST).write_bytes(text + b"\n")


def check_replaceable(directory: Path) -> None:
    """Raise a UserError unless the path is free, an empty directory, or a Run."""
    require_replaceable(directory, lambda: manifest_in(directory, FORMAT) is not None, "a Run")


def _version(tables: Mapping[str, Columns], manifest: Manifest) -> int:
    """Return the oldest format version whose readers do not misread this Run."""
    newer = "chunks" in tables or manifest.partial or (tables["requests"]["status"] == FAILED).any()
    return FORMAT_VERSION if newer else FIRST_VERSION


def _write_table(path: Path, columns: tuple[Column, ...], values: Columns) -> int:
    rows = len(values[columns[0].name])
    floats = [column.name for column in columns if pa.types.is_floating(column.type)]
    # Numbers that rise by one, or stay, compress best as differences.
    counting = [column.name for column in columns if column.name.endswith("iteration")]
    others = [column.name for column in columns if column.name not in (*floats, *counting)]
    with parquet.writing(
        path,
        schema(columns),
        compression_level=1,
        use_dictionary=others,
        use_byte_stream_split=floats,
        column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    ) as writer:
        for first in range(0, max(rows, 1), _ROWS):
            part = [_array(column, values[column.name][first : first + _ROWS]) for column in columns]
            writer.write_table(pa.table(part, schema=schema(columns)), row_group_size=_ROWS)
    return rows


def _array(column: Column, values: NDArray[Any]) -> pa.Array:
    """Convert to arrow: null for NaN and -1, which stand for what never happened."""
    if column.type == STATUS:
        # Readers of the first version do not know the last status.
        names = STATUSES if (values == FAILED).any() else STATUSES[:FAILED]
        return pa.DictionaryArray.from_arrays(array_of(values, pa.int8()), texts_of(names))
    if column.type in (FLAG, TEXT):
        return pa.array(values, column.type)
    missing = np.isnan(values) if pa.types.is_floating(column.type) else values < 0
    return array_of(values, column.type, missing)
