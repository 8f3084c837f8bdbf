"""Tables as text with a header: CSV, and the same with tabs or semicolons."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.csv

from laminabench.traces.formats.arrivals import Clock
from laminabench.traces.formats.layout import Columns, choose
from laminabench.traces.formats.limits import MOST_COLUMNS
from laminabench.traces.formats.reading import Reading, Record, Requests, all_rows, no_nulls, requests_from
from laminabench.traces.formats.source import CleanUtf8, Source
from laminabench.traces.formats.wording import BadValueError, Doubtful, Written, unreadable
from laminabench.util.errors import UserError


class Header(msgspec.Struct, frozen=True):
    names: list[str]
    delimiter: str
    # The line it ends at: the rows come after it.
    line: int


def read(reading: Reading) -> Requests:
    header = header_of(reading.source)
    where = f"{reading.source.label}:{header.line}"
    if "blocks" in reading.columns:
        raise UserError(
            "trace-no-blocks-in-csv",
            f"{where}: a CSV column cannot hold prefix blocks; write the trace as jsonl or parquet",
        )
    columns = choose(reading.layout, header.names, reading.columns, where)
    with contextlib.suppress(Doubtful, BadValueError, pa.ArrowException):
        return fast(reading, header, columns)
    return careful(reading, header, columns)


def fast(reading: Reading, header: Header, columns: Columns) -> Requests:
    """Read with Arrow, which knows numbers and columns but not lines."""
    # Numbers that are times, and sessions, stay text: they have one converter, the careful path's too.
    types = {} if columns.session is None else {columns.session: pa.string()}
    clock = None
    if columns.arrival is not None:
        clock = _clock(reading, header, columns.arrival)
        types[columns.arrival] = clock.column_type()
    types |= {columns.prompt: pa.float64(), columns.output: pa.float64()}
    # Columns we do not read may share a name.
    unique = [name if name in types else f"{place}\0" for place, name in enumerate(header.names)]
    with CleanUtf8(reading.source) as stream:
        table = pa.csv.read_csv(
            stream,
            read_options=pa.csv.ReadOptions(column_names=unique, skip_rows=header.line),
            parse_options=pa.csv.ParseOptions(delimiter=header.delimiter),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[]
            ),
        )
    if len(table) == 0:
        raise Doubtful("no rows")
    arrival_s = None
    if columns.arrival is not None and clock is not None:
        arrival_s = clock.seconds(no_nulls(table[columns.arrival]))
    return all_rows(table, columns, arrival_s)


def _clock(reading: Reading, header: Header, arrival: str) -> Clock:
    """Return the clock that the first row's time is written in."""
    first = next(_records(reading.source, header, {arrival: header.names.index(arrival)}), None)
    if first is None or first.problem:
        raise Doubtful("no first row")
    return Clock(str(first.cells[arrival]), reading.time_unit, reading.layout.times)


def careful(reading: Reading, header: Header, columns: Columns) -> Requests:
    positions = {name: header.names.index(name) for name in columns.names()}
    return requests_from(_records(reading.source, header, positions), columns, reading)


def header_of(source: Source) -> Header:
    """Return the first line that is not blank; its commonest separator is the file's."""
    lines = enumerate(source.lines(), 1)
    number, line = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if trouble := unreadable(line):
        raise UserError("trace-not-text", f"{source.label}:{number}: {trouble}; not a trace")
    delimiter = max(",\t;", key=line.count)
    try:
        names = next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise UserError(
            "trace-open-quote", f"{source.label}:{number}: the header has a quote that does not end"
        ) from error
    if len(names) > MOST_COLUMNS:
        raise UserError(
            "trace-too-many-columns",
            f"{source.label}:{number}: the header has {len(names):,} columns; a trace has a few",
        )
    return Header([name.strip() for name in names], delimiter, number)


def _records(source: Source, header: Header, positions: dict[str, int]) -> Iterator[Record]:
    lines = _Lines(source, header.line)
    reader = csv.reader(lines, delimiter=header.delimiter)
    width = len(header.names)
    while True:
        start = lines.number + 1
        lines.trouble = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a field beyond csv.field_size_limit()
            fields = []
        if lines.ended or (not fields and lines.number > start):
            # What follows is inside the quotes: there is no row to skip and go on from.
            raise UserError(
                "trace-open-quote", f"{source.label}:{start}: a quote opens in this row and does not end"
            )
        if lines.trouble is not None:
            yield Record(start, {}, lines.trouble)
        elif len(fields) == width:
            yield Record(start, {name: Written(fields[place]) for name, place in positions.items()})
        elif not fields and len(lines.last) > csv.field_size_limit():
            yield Record(start, {}, f"has a field longer than {csv.field_size_limit():,} characters")
        elif len(fields) > 1 or lines.last.strip():
            yield Record(start, {}, f"has {len(fields)} fields where the header has {width}")


class _Lines:
    """The lines after the header, counted, for the csv module; remembers what cannot be text."""

    def __init__(self, source: Source, skip: int) -> None:
        self._lines = source.lines()
        self.number = 0
        self.last = ""
        self.ended = False
        self.trouble: str | None = None
        for _ in range(skip):
            next(self)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.number += 1
        self.last = line
        self.trouble = self.trouble or unreadable(line)
        return line
