"""Writing traces to files that `formats.load_file` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from msgspec.structs import asdict

from laminabench.traces.formats.parquet import METADATA_KEY
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util import parquet
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

SUFFIXES = (".parquet", ".jsonl", ".csv")
_ROWS = 1 << 20


def save(trace: Trace, path: Path) -> None:
    """Write by suffix: .parquet keeps everything, .jsonl all columns, .csv all but prefix blocks."""
    check_suffix(path)
    writers = {".parquet": _write_parquet, ".jsonl": _write_jsonl, ".csv": _write_csv}
    with replacing(path) as temporary:
        writers[path.suffix.lower()](trace, temporary)


def check_suffix(path: Path) -> None:
    """Raise a UserError for a name that `save` does not write, before anything is computed for it."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            "trace-bad-suffix", f"cannot write {path}: a trace file ends in {', '.join(SUFFIXES)}"
        )


def lost_in(path: Path, trace: Trace) -> str | None:
    """Return what a file of this kind would lose of the trace, as a sentence."""
    suffix = path.suffix.lower()
    if trace.prefix_blocks is None or suffix == ".parquet":
        return None
    if suffix == ".csv":
        return f"{path} has no prefix blocks, which a CSV cannot hold; .parquet and .jsonl keep them"
    if trace.meta.block_tokens != TraceMeta("").block_tokens:
        return f"{path} does not say that a prefix block is {trace.meta.block_tokens:,} tokens; .parquet does"
    return None


def _write_parquet(trace: Trace, path: Path) -> None:
    first = _table(trace, slice(0, 0), arrivals=True)
    schema = first.schema.with_metadata({METADATA_KEY: json.dumps(asdict(trace.meta)).encode()})
    # Times and ids hardly repeat: a dictionary of them is only work.
    repeated = [name for name in ("prompt_tokens", "output_tokens") if name in schema.names]
    with parquet.writing(path, schema, use_dictionary=repeated, write_page_checksum=True) as writer:
        for rows in _slices(trace):
            writer.write_table(_table(trace, rows, arrivals=True).cast(schema))


def _write_csv(trace: Trace, path: Path) -> None:
    with path.open("wb") as file:
        names = [name for name in _table(trace, slice(0, 0)).column_names if name != "prefix_blocks"]
        file.write((",".join(names) + "\n").encode())
        options = pa.csv.WriteOptions(include_header=False)
        for rows in _slices(trace):
            pa.csv.write_csv(_table(trace, rows).select(names), file, options)


def _write_jsonl(trace: Trace, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for rows in _slices(trace):
            for batch in _table(trace, rows).to_batches(max_chunksize=1 << 14):
                file.writelines(json.dumps(request) + "\n" for request in batch.to_pylist())


def _slices(trace: Trace) -> Iterator[slice]:
    """Yield slices of rows to convert at a time: a copy of a whole month would not fit into memory too."""
    return (slice(first, first + _ROWS) for first in range(0, len(trace), _ROWS))


def _table(trace: Trace, rows: slice, *, arrivals: bool = False) -> pa.Table:
    """Return these rows under the names of the file; without arrivals where the trace has none."""
    columns = {}
    if arrivals or trace.meta.has_arrivals:
        columns["arrival_s"] = pa.array(trace.arrival_s[rows])
    columns["prompt_tokens"] = pa.array(trace.prompt_tokens[rows])
    columns["output_tokens"] = pa.array(trace.output_tokens[rows])
    if trace.session is not None:
        columns["session"] = pa.array(trace.session[rows])
    if trace.prefix_blocks is not None:
        offsets = trace.prefix_blocks.offsets[rows.start : min(rows.stop, len(trace)) + 1]
        ids = trace.prefix_blocks.ids[offsets[0] : offsets[-1]]
        columns["prefix_blocks"] = pa.ListArray.from_arrays(
            pa.array((offsets - offsets[0]).astype("int32")), pa.array(ids, pa.int64())
        )
    return pa.table(columns)
