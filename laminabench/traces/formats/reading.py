"""Inputs and results of all readers, and the careful path: row by row, to name what is wrong and where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from laminabench.traces.arrow import mask_of, numpy_of
from laminabench.traces.formats.arrivals import NUMBER, Clock
from laminabench.traces.formats.layout import Columns, Layout
from laminabench.traces.formats.source import Source
from laminabench.traces.formats.wording import HINT, BadValueError, Doubtful, Written, name_of, shown
from laminabench.traces.table import MAX_TOKENS, Float64, Int32, Int64, PrefixBlocks, TraceMeta
from laminabench.util.errors import UserError


class Reading(msgspec.Struct, frozen=True):
    """One file to read, and how the user wants it read."""

    source: Source
    layout: Layout
    columns: Mapping[str, str]
    time_unit: str
    skip_bad: bool
    tokenizer: Path | None


class Requests(msgspec.Struct, frozen=True):
    """The columns of a file, valid row by row, in the order of the file."""

    arrival_s: Float64 | None
    prompt_tokens: Int32
    output_tokens: Int32
    session: Int64 | None = None
    blocks: PrefixBlocks | None = None
    notes: tuple[str, ...] = ()
    # What a file of our own remembers of its origin.
    meta: TraceMeta | None = None


class BadRows:
    """A policy for bad rows: stop at the first, or count them if the user allowed it."""

    def __init__(self, label: str, skip: bool) -> None:
        self.label = label
        self.skip = skip
        self.count = 0
        self.first = ""

    def add(self, where: str, problem: str, count: int = 1) -> None:
        sentence = f"{where}: {problem}"
        if not self.skip:
            raise UserError("trace-bad-row", sentence + HINT)
        self.first = self.first or sentence
        self.count += count

    def notes(self, good: int) -> tuple[str, ...]:
        if good == 0 and self.count:
            raise UserError(
                "trace-all-rows-bad", f"all rows are bad ({self.count:,}), the first at {self.first}"
            )
        if good == 0:
            raise UserError("trace-empty", f"{self.label}: no requests in it; a trace needs at least one row")
        if self.count == 0:
            return ()
        return (f"{self.count:,} bad row{'s' * (self.count > 1)} skipped, the first at {self.first}",)


def all_tokens(chunks: Sequence[pa.Array], least: int) -> Int32:
    """Return the chunks of a float64 column of counts; Doubtful unless every one is good."""
    tokens = np.empty(sum(map(len, chunks)), np.int32)
    start = 0
    for chunk in chunks:
        values = numpy_of(no_nulls(chunk))
        good = values >= least  # as is no NaN
        good &= values <= MAX_TOKENS
        good &= values == np.floor(values)
        if not good.all():
            raise Doubtful("a count that is none")
        tokens[start : start + len(values)] = values
        start += len(values)
    return tokens


def no_nulls(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if column.null_count:
        raise Doubtful("a value is missing")
    return column


def session_ids(texts: pa.ChunkedArray) -> Int64:
    """Return session numbers: whole numbers unchanged, names numbered, a new one where it is missing."""
    import pyarrow.compute as pc

    alone = mask_of(pc.fill_null(pc.equal(texts, ""), True))
    named = texts.filter(pa.array(~alone))
    try:
        numbers = numpy_of(named.cast(pa.int64()))
        if len(numbers) and numbers.max() > 1 << 62:
            raise pa.ArrowInvalid("no room above it")
    except pa.ArrowInvalid:
        numbers = numpy_of(named.combine_chunks().dictionary_encode().indices)
    ids = np.empty(len(texts), np.int64)
    ids[~alone] = numbers
    ids[alone] = np.arange(np.count_nonzero(alone)) + (numbers.max() + 1 if len(numbers) else 0)
    return ids


def block_lists(column: pa.ChunkedArray) -> PrefixBlocks:
    """Return a list<int64> column as flat blocks; Doubtful if a list is missing or an id is."""
    lengths, ids = [], []
    for chunk in no_nulls(column).chunks:
        lengths.append(np.diff(numpy_of(chunk.offsets)))
        ids.append(numpy_of(no_nulls(chunk.flatten())))
        if len(ids[-1]) and ids[-1].min() < 0:
            raise Doubtful("an id below zero")
    offsets = np.zeros(len(column) + 1, np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return PrefixBlocks(offsets, np.concatenate(ids) if ids else np.empty(0, np.int64))


def all_rows(table: pa.Table, columns: Columns, arrival_s: Float64 | None) -> Requests:
    """Return every row of a table that Arrow has read; Doubtful unless all are good."""
    return Requests(
        arrival_s,
        all_tokens(table[columns.prompt].chunks, least=1),
        all_tokens(table[columns.output].chunks, least=0),
        session_ids(table[columns.session].cast(pa.string())) if columns.session is not None else None,
        block_lists(table[columns.blocks]) if columns.blocks is not None else None,
    )


class Record(NamedTuple):
    """One row of a file: its cells, or the problem that left it without."""

    line: int | str  # or of what has no lines: which row
    cells: Mapping[str, object]
    problem: str = ""


_NO_BLOCKS: list[int] = []


@dataclass(slots=True)
class _Gathered:
    """The good rows, by column: a million row objects would keep the garbage collector busy."""

    arrival: list[str] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    session: list[str | None] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)


def requests_from(records: Iterable[Record], columns: Columns, reading: Reading) -> Requests:
    """Return the good rows of the records; the first bad one stops, unless the user said to skip it."""
    label = reading.source.label
    bad = BadRows(label, reading.skip_bad)
    rows = _gather(records, columns, reading, bad)
    notes = bad.notes(len(rows.prompt))
    arrival_s = None
    if columns.arrival is not None:
        texts = pa.chunked_array([pa.array(rows.arrival, pa.string())])
        try:
            arrival_s = Clock(rows.arrival[0], reading.time_unit).seconds(texts)
        except (Doubtful, pa.ArrowException) as error:  # nothing known gets here; Arrow's releases differ
            raise UserError(
                "trace-mixed-times",
                f"{label}: {name_of(columns.arrival)} holds times that cannot be compared",
            ) from error
    sessions = None
    if columns.session is not None:
        sessions = session_ids(pa.chunked_array([pa.array(rows.session, pa.string())]))
    return Requests(
        arrival_s,
        np.array(rows.prompt, np.int32),
        np.array(rows.output, np.int32),
        sessions,
        PrefixBlocks.from_lists(rows.blocks) if columns.blocks is not None else None,
        notes,
    )


def _gather(records: Iterable[Record], columns: Columns, reading: Reading, bad: BadRows) -> _Gathered:
    rows = _Gathered()
    clock: Clock | None = None
    limits = reading.source.limits
    most = limits.most_rows
    for number, record in enumerate(records, 1):
        if number > most:
            limits.require_rows(number, reading.source.label)
        where = f"{reading.source.label}:{record.line}"
        if record.problem:
            bad.add(where, record.problem)
            continue
        cell = _Cells(record.cells)
        try:
            prompt = cell.tokens(columns.prompt, least=1)
            output = cell.tokens(columns.output, least=0)
            arrival = ""
            if columns.arrival is not None:
                arrival, clock = cell.arrival(columns.arrival, clock, reading)
            session = cell.session(columns.session) if columns.session is not None else None
            blocks = cell.blocks(columns.blocks) if columns.blocks is not None else _NO_BLOCKS
        except BadValueError as error:
            bad.add(where, str(error))
            continue
        rows.arrival.append(arrival)
        rows.prompt.append(prompt)
        rows.output.append(output)
        rows.session.append(session)
        rows.blocks.append(blocks)
    return rows


class _Cells:
    """The cells of one row, each turned into what it must be, or into the reason why it cannot."""

    def __init__(self, cells: Mapping[str, object]) -> None:
        self._cells = cells

    def _get(self, column: str) -> object:
        if column not in self._cells:
            raise BadValueError(f"has no {shown(column)}")
        return self._cells[column]

    def tokens(self, column: str, least: int) -> int:
        value = self._get(column)
        text = value.strip(" \t") if isinstance(value, Written) else ""
        if text.isascii() and text.isdecimal() and len(text) < 8 and text.strip("0"):
            return int(text)  # as nearly all are: MAX_TOKENS has eight digits
        number = float(text) if NUMBER.fullmatch(text) else math.nan
        if not number.is_integer() and not math.isinf(number):
            raise _bad(column, value, "not a whole number")
        if number < least:
            raise _bad(column, value, "below 1; every request has a prompt" if least else "below 0")
        if number > MAX_TOKENS:
            raise _bad(column, value, f"more than {MAX_TOKENS:,} tokens; a wrong column or unit?")
        return int(number)

    def arrival(self, column: str, clock: Clock | None, reading: Reading) -> tuple[str, Clock]:
        value = self._get(column)
        if not isinstance(value, str):
            raise _bad(column, value, "not a time")
        try:
            clock = clock or Clock(value, reading.time_unit, reading.layout.times)
            if not clock.dates and not isinstance(value, Written):
                raise BadValueError("a string, not a number")
            return clock.normal(value), clock
        except BadValueError as error:
            raise _bad(column, value, str(error)) from error

    def session(self, column: str) -> str | None:
        value = self._cells.get(column)
        if value is not None and not isinstance(value, str):
            raise _bad(column, value, "not a number or a name")
        return value

    def blocks(self, column: str) -> list[int]:
        value = self._get(column)
        if not isinstance(value, list):
            raise _bad(column, value, "not a list of block ids")
        return [self._block(column, block) for block in value]

    @staticmethod
    def _block(column: str, block: object) -> int:
        digits = block if isinstance(block, Written) else ""
        if not digits.removeprefix("-").isdecimal():
            raise BadValueError(f"{name_of(column)} holds {shown(block)}, not a whole number")
        if digits.startswith("-") and digits.strip("-0"):
            raise BadValueError(f"{name_of(column)} holds {shown(block)}, below 0")
        if len(digits) > 19 or int(digits) >= 1 << 63:
            raise BadValueError(f"{name_of(column)} holds {shown(block)}, beyond 64 bits")
        return int(digits)


def _bad(column: str, value: object, problem: str) -> BadValueError:
    return BadValueError(f"{name_of(column)} is {shown(value)}, {problem}")
