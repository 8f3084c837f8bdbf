"""Parquet: our own traces, which remember where they come from, and other people's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from laminabench.traces.arrow import numpy_of
from laminabench.traces.formats.arrivals import PER_SECOND, Clock, exact_seconds, since_first
from laminabench.traces.formats.layout import Columns, choose
from laminabench.traces.formats.limits import MOST_COLUMNS
from laminabench.traces.formats.reading import (
    Reading,
    Record,
    Requests,
    all_tokens,
    block_lists,
    no_nulls,
    requests_from,
    session_ids,
)
from laminabench.traces.formats.source import Source
from laminabench.traces.formats.wording import BadValueError, Doubtful, Written, shown
from laminabench.traces.table import MAX_TOKENS, Float64, Int32, Int64, PrefixBlocks, TraceMeta
from laminabench.util import parquet
from laminabench.util.errors import UserError

METADATA_KEY = b"laminabench"
_BATCH, _BATCH_OF_TEXTS = 1 << 20, 1 << 14


def read(reading: Reading) -> Requests:
    label = reading.source.label
    try:
        # Without checksums a flipped bit would be a wrong trace, not an error; `store` writes them.
        with parquet.reading(reading.source.path, page_checksum_verification=True) as file:
            return _read(file, reading)
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, Doubtful) as error:
        raise UserError(
            "trace-damaged", f"{label}: the parquet file is damaged or not parquet; fetch or write it again"
        ) from error


def _read(file: parquet.ParquetFile, reading: Reading) -> Requests:
    label, schema = reading.source.label, file.schema_arrow
    if len(schema.names) > MOST_COLUMNS:
        raise UserError(
            "trace-too-many-columns", f"{label}: has {len(schema.names):,} columns; a trace has a few"
        )
    columns = choose(reading.layout, schema.names, reading.columns, label)
    _require_types(schema, columns, label)
    _require_bounds(file.metadata.num_rows, columns, reading.source)
    if columns.arrival is not None and _is_moment(kind := schema.field(columns.arrival).type):
        reading = replace(reading, time_unit=_timestamp(kind).unit)
    with contextlib.suppress(Doubtful, BadValueError, pa.ArrowException):
        return replace(_fast(file, columns, reading), meta=_own_meta(schema, label))
    requests = requests_from(_records(file, columns), columns, reading)
    return replace(requests, meta=_own_meta(schema, label))


def _require_bounds(rows: int, columns: Columns, source: Source) -> None:
    """Check the sizes in the footer before allocating: equal values take next to nothing in a file.

    Of single columns it promises more, but Arrow ends the process where that is damaged.
    """
    source.limits.require_rows(rows, source.label)
    source.limits.require_bytes(8 * rows * len(columns.names()), source.bytes, source.label)


def _require_types(schema: pa.Schema, columns: Columns, label: str) -> None:
    for column, expected, *right in (
        (columns.prompt, "whole numbers", _is_number),
        (columns.output, "whole numbers", _is_number),
        (columns.arrival, "times", _is_number, _is_moment, _is_text),
        (columns.session, "numbers or names", pa.types.is_integer, _is_text),
        (columns.blocks, "lists of whole numbers", _is_integers),
    ):
        kind = None if column is None else schema.field(column).type
        if kind is not None and not any(is_so(kind) for is_so in right):
            raise UserError(
                "trace-bad-column-type",
                f"{label}: column {shown(column)} holds {str(kind)[:40]}, not {expected}",
            )


def _fast(file: parquet.ParquetFile, columns: Columns, reading: Reading) -> Requests:
    """Read without checking single rows: Doubtful where one might be bad."""
    if file.metadata.num_rows == 0:
        raise Doubtful("no rows")

    def tokens(column: str, least: int) -> Int32:
        return _filled(file, reading, column, np.int32, lambda chunk: all_tokens([_floats(chunk)], least))

    return Requests(
        _arrivals(file, columns.arrival, reading) if columns.arrival else None,
        tokens(columns.prompt, 1),
        tokens(columns.output, 0),
        _sessions(file, reading, columns.session) if columns.session else None,
        _blocks(file, reading, columns.blocks) if columns.blocks else None,
    )


def _arrivals(file: parquet.ParquetFile, column: str, reading: Reading) -> Float64:
    kind = file.schema_arrow.field(column).type
    if _is_text(kind):
        texts = pa.chunked_array(
            [no_nulls(chunk).cast(pa.string()) for chunk in _chunks(file, reading, column)]
        )
        clock = Clock(texts[0].as_py(), reading.time_unit)
        if not clock.dates:
            raise Doubtful("a number in quotes")
        return clock.seconds(texts)
    per_second = PER_SECOND[reading.time_unit]
    if _is_moment(kind) or pa.types.is_integer(kind):
        ticks = _filled(file, reading, column, np.int64, lambda chunk: numpy_of(no_nulls(_ticks(chunk))))
        return since_first(ticks, per_second)
    values = _filled(file, reading, column, np.float64, lambda chunk: numpy_of(no_nulls(_floats(chunk))))
    exact = exact_seconds(values, per_second)
    return exact if exact is not None else np.asarray((values - values[0]) / per_second)


def _sessions(file: parquet.ParquetFile, reading: Reading, column: str) -> Int64:
    if file.schema_arrow.field(column).type == pa.int64():
        with contextlib.suppress(Doubtful):
            return _filled(file, reading, column, np.int64, lambda chunk: numpy_of(no_nulls(chunk)))
    return session_ids(
        pa.chunked_array([chunk.cast(pa.string()) for chunk in _chunks(file, reading, column)])
    )


def _blocks(file: parquet.ParquetFile, reading: Reading, column: str) -> PrefixBlocks:
    parts = [
        block_lists(pa.chunked_array([chunk.cast(pa.list_(pa.int64()))]))
        for chunk in _chunks(file, reading, column)
    ]
    offsets = np.zeros(file.metadata.num_rows + 1, np.int64)
    np.cumsum(np.concatenate([part.lengths() for part in parts]), out=offsets[1:])
    return PrefixBlocks(offsets, np.concatenate([part.ids for part in parts]))


def _filled(
    file: parquet.ParquetFile,
    reading: Reading,
    column: str,
    dtype: type,
    numbers: Callable[[pa.Array], NDArray[Any]],
) -> NDArray[Any]:
    """Return a column as numbers, in batches: a month of traffic fits into memory once."""
    filled, start = np.empty(file.metadata.num_rows, dtype), 0
    for chunk in _chunks(file, reading, column):
        filled[start : start + len(chunk)] = numbers(chunk)
        start += len(chunk)
    return filled


def _chunks(file: parquet.ParquetFile, reading: Reading, column: str) -> Iterator[pa.Array]:
    source, kind = reading.source, file.schema_arrow.field(column).type
    batch_size = _BATCH if _is_number(kind) or _is_moment(kind) else _BATCH_OF_TEXTS
    rows = unpacked = 0
    for batch in file.iter_batches(batch_size=batch_size, columns=[column]):
        chunk = batch.column(batch.schema.get_field_index(column))
        # Of texts and lists, how much they are shows here only.
        unpacked += chunk.nbytes
        source.limits.require_bytes(unpacked, source.bytes, source.label)
        yield chunk
        rows += len(batch)
    if rows != file.metadata.num_rows:
        raise pa.ArrowInvalid("fewer rows than the footer promises")


def _records(file: parquet.ParquetFile, columns: Columns) -> Iterator[Record]:
    """Yield row by row as texts, which is what the checks of rows take."""
    names, row = columns.names(), 0
    for batch in file.iter_batches(batch_size=_BATCH_OF_TEXTS, columns=names):
        cells = [_texts(batch.column(batch.schema.get_field_index(name))) for name in names]
        for row, values in enumerate(zip(*cells, strict=True), row + 1):  # noqa: B020 - it goes on
            yield Record(f" row {row}", dict(zip(names, values, strict=True)))


def _texts(chunk: pa.Array) -> list[object]:
    if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
        lists = chunk.to_pylist()
        return [row and [id_ if id_ is None else Written(id_) for id_ in row] for row in lists]
    if _is_moment(chunk.type):
        chunk = _ticks(chunk)
    elif pa.types.is_floating(chunk.type):
        chunk = chunk.cast(pa.float64())
    return [text if text is None else Written(text) for text in chunk.cast(pa.string()).to_pylist()]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_integers(kind: pa.DataType) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(listed and pa.types.is_integer(kind.value_type))


def _timestamp(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("s") if pa.types.is_date(kind) else kind


def _ticks(chunk: pa.Array) -> pa.Array:
    """Return whole numbers; moments as so many of their units."""
    return (chunk.cast(_timestamp(chunk.type)) if _is_moment(chunk.type) else chunk).cast(pa.int64())


def _floats(chunk: pa.Array) -> pa.Array:
    return chunk.cast(pa.float64(), safe=False)


def _own_meta(schema: pa.Schema, label: str) -> TraceMeta | None:
    """Return the metadata that `store.save` wrote, if it did."""
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    try:
        known = json.loads(text)
        meta = msgspec.convert({**known, "notes": known["notes"]}, TraceMeta)
        if not 1 <= meta.block_tokens <= MAX_TOKENS:
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            "trace-damaged", f"{label}: its laminabench metadata are damaged; write the trace again"
        ) from error
    return meta
