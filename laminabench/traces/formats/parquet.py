"""Parquet: our own traces, which remember where they come from, and other people's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from laminabench.errors import UserError
from laminabench.traces.arrow import mask_of, numpy_of
from laminabench.traces.formats.arrivals import LIMIT, PER_SECOND, Clock, exact_seconds, since_first
from laminabench.traces.formats.layout import Columns, choose
from laminabench.traces.formats.reading import (
    BadRows,
    Reading,
    Requests,
    block_lists,
    good_tokens,
    session_ids,
)
from laminabench.traces.formats.wording import BadValueError, Doubtful, name_of, shown
from laminabench.traces.table import MAX_TOKENS, Float64, Int32, Int64, PrefixBlocks, TraceMeta, taken

METADATA_KEY = b"laminabench"
_BATCH = 1 << 20
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def read(reading: Reading) -> Requests:
    label = reading.source.label
    try:
        # Without checksums a flipped bit would be a wrong trace, not an error; `store` writes them.
        with pa.parquet.ParquetFile(reading.source.path, page_checksum_verification=True) as file:
            return _read(file, reading)
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, Doubtful) as error:
        raise UserError(
            "trace-damaged", f"{label}: the parquet file is damaged or not parquet; fetch or write it again"
        ) from error


def _read(file: pa.parquet.ParquetFile, reading: Reading) -> Requests:
    label, schema = reading.source.label, file.schema_arrow
    columns = choose(reading.layout, schema.names, reading.columns, label)
    if file.metadata.num_rows == 0:
        BadRows(label, reading.skip_bad).notes(0)
    table = _Table(file, label)
    good = np.ones(file.metadata.num_rows, np.bool_)
    bad = BadRows(label, reading.skip_bad)
    prompt = table.tokens(columns.prompt, 1, good)
    output = table.tokens(columns.output, 0, good)
    arrival = table.arrivals(columns.arrival, reading.time_unit, good) if columns.arrival else None
    blocks = table.blocks(columns.blocks, good) if columns.blocks else None
    session = table.sessions(columns.session) if columns.session else None
    if not good.all():
        row = int(np.argmin(good))
        bad.add(f"{label}: row {row + 1}", table.problem_of(row, columns), int(len(good) - good.sum()))
    notes = bad.notes(int(good.sum()))
    if not good.all():
        columns_read = (prompt, output, arrival, session, blocks)
        prompt, output, arrival, session, blocks = taken(np.flatnonzero(good), columns_read)
    arrival_s = arrival.seconds() if arrival is not None else None
    return Requests(arrival_s, prompt, output, session, blocks, notes, _own_meta(schema, label))


@dataclass(slots=True)
class _Arrivals:
    """Times as numbers, of this many a second."""

    values: Int64 | Float64
    per_second: int

    def take(self, rows: Int64) -> _Arrivals:
        return _Arrivals(self.values[rows], self.per_second)

    def seconds(self) -> Float64:
        if self.values.dtype == np.int64:
            return since_first(self.values.astype(np.int64, copy=False), self.per_second)
        values = self.values.astype(np.float64, copy=False)
        exact = exact_seconds(values, self.per_second)
        return exact if exact is not None else (values - values[0]) / self.per_second


class _Table:
    """The columns of a file, one at a time and in batches: a month of traffic fits into memory once."""

    def __init__(self, file: pa.parquet.ParquetFile, label: str) -> None:
        self._file = file
        self._label = label
        self._rows = file.metadata.num_rows

    def _chunks_of(self, column: str) -> Iterator[tuple[slice, pa.Array]]:
        start = 0
        for batch in self._file.iter_batches(batch_size=_BATCH, columns=[column]):
            chunk = batch.column(batch.schema.get_field_index(column))
            yield slice(start, start + len(chunk)), chunk
            start += len(chunk)
        if start != self._rows:
            raise pa.ArrowInvalid("fewer rows than the footer promises")

    def _type(self, column: str) -> pa.DataType:
        return self._file.schema_arrow.field(column).type

    def _wrong(self, column: str, wanted: str) -> UserError:
        return UserError(
            "trace-bad-column-type",
            f"{self._label}: column {shown(column)} holds {str(self._type(column))[:40]}, not {wanted}",
        )

    def tokens(self, column: str, least: int, good: Mask) -> Int32:
        if not _is_number(self._type(column)):
            raise self._wrong(column, "whole numbers")
        tokens = np.zeros(self._rows, np.int32)
        for rows, chunk in self._chunks_of(column):
            values = _floats(chunk)
            fine = good_tokens(values, least)
            good[rows] &= fine
            tokens[rows] = values if fine.all() else np.where(fine, values, 0)
        return tokens

    def arrivals(self, column: str, unit: str, good: Mask) -> _Arrivals:
        kind = self._type(column)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._text_arrivals(column, unit, good)
        if pa.types.is_date(kind):
            kind = pa.timestamp("s")
        whole = pa.types.is_timestamp(kind) or pa.types.is_integer(kind)
        if not whole and not _is_number(kind):
            raise self._wrong(column, "times")
        values = np.zeros(self._rows, np.int64 if whole else np.float64)
        for rows, chunk in self._chunks_of(column):
            if whole:
                good[rows] &= mask_of(chunk.is_valid())
                ticks = chunk.cast(kind).cast(pa.int64(), safe=False).fill_null(0)
                values[rows] = numpy_of(ticks)
            else:
                values[rows] = _floats(chunk)
            good[rows] &= (values[rows] < LIMIT) & (values[rows] > -LIMIT)
        return _Arrivals(values, PER_SECOND[kind.unit if pa.types.is_timestamp(kind) else unit])

    def _text_arrivals(self, column: str, unit: str, good: Mask) -> _Arrivals:
        texts: list[str] = []
        clock = None
        for rows, chunk in self._chunks_of(column):
            for row, text in enumerate(chunk.to_pylist(), rows.start):
                try:
                    clock = clock or Clock(text or "", unit)
                    texts.append(clock.normal(text or ""))
                except BadValueError:
                    good[row] = False
                    texts.append(texts[-1] if texts else "")
        if clock is None:
            return _Arrivals(np.zeros(self._rows), 1)
        # What stands before the first time is bad as well: any time will do in its place.
        first = next(text for text in texts if text)
        column_of_texts = pa.chunked_array([pa.array([text or first for text in texts], pa.string())])
        return _Arrivals(clock.seconds(column_of_texts), 1)

    def sessions(self, column: str) -> Int64:
        kind = self._type(column)
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise self._wrong(column, "numbers or names")
        if kind == pa.int64() and not _may_be_null(self._file, column):
            sessions = np.empty(self._rows, np.int64)
            for rows, chunk in self._chunks_of(column):
                sessions[rows] = numpy_of(chunk)
            return sessions
        texts = [chunk.cast(pa.string()) for _, chunk in self._chunks_of(column)]
        return session_ids(pa.chunked_array(texts, pa.string()))

    def blocks(self, column: str, good: Mask) -> PrefixBlocks:
        kind = self._type(column)
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not listed or not pa.types.is_integer(kind.value_type):
            raise self._wrong(column, "lists of whole numbers")
        parts: list[PrefixBlocks] = []
        for rows, chunk in self._chunks_of(column):
            chunk = chunk.cast(pa.list_(pa.int64()), safe=True)  # noqa: PLW2901
            try:
                parts.append(block_lists(pa.chunked_array([chunk])))
            except Doubtful:
                lists = chunk.to_pylist()
                fine = [row is not None and all(id_ is not None and id_ >= 0 for id_ in row) for row in lists]
                good[rows] &= np.array(fine)
                parts.append(
                    PrefixBlocks.from_lists(row if ok else [] for row, ok in zip(lists, fine, strict=True))
                )
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(np.concatenate([part.lengths() for part in parts]), out=offsets[1:])
        return PrefixBlocks(offsets, np.concatenate([part.ids for part in parts]))

    def problem_of(self, row: int, columns: Columns) -> str:
        """What is wrong with a row that is known to be bad."""
        for column, least in ((columns.prompt, 1), (columns.output, 0)):
            value = self._value(column, row)
            if value is None or not good_tokens(np.array([float(str(value))]), least).all():
                return (
                    f"{name_of(column)} is {shown(value)}, not a whole number from {least} to {MAX_TOKENS:,}"
                )
        if columns.blocks is not None:
            value = self._value(columns.blocks, row)
            if not isinstance(value, list) or any(block is None or block < 0 for block in value):
                return f"{name_of(columns.blocks)} is not a list of whole numbers from 0"
        assert columns.arrival is not None
        return f"{name_of(columns.arrival)} is {shown(self._value(columns.arrival, row))}, not such a time"

    def _value(self, column: str, row: int) -> object:
        for rows, chunk in self._chunks_of(column):
            if row < rows.stop:
                value: object = chunk[row - rows.start].as_py()
                return value
        raise AssertionError(row)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floats(chunk: pa.Array) -> Float64:
    """Missing values become NaN, which no check lets through."""
    values: Float64 = numpy_of(chunk.cast(pa.float64(), safe=False).fill_null(float("nan")))
    return values


def _may_be_null(file: pa.parquet.ParquetFile, column: str) -> bool:
    if not file.schema_arrow.field(column).nullable:
        return False
    place = file.schema_arrow.names.index(column)
    groups = (file.metadata.row_group(group).column(place) for group in range(file.metadata.num_row_groups))
    return any(group.statistics is None or group.statistics.null_count != 0 for group in groups)


def _own_meta(schema: pa.Schema, label: str) -> TraceMeta | None:
    """The metadata that `store.save` wrote, if it did."""
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
