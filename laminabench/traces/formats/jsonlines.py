"""One JSON object a line."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.json

from laminabench.traces.arrow import numpy_of
from laminabench.traces.formats.arrivals import PER_SECOND, Clock, exact_seconds
from laminabench.traces.formats.layout import Columns, choose
from laminabench.traces.formats.reading import Reading, Record, Requests, all_rows, no_nulls, requests_from
from laminabench.traces.formats.source import CleanUtf8, Source
from laminabench.traces.formats.wording import BadValueError, Doubtful, Written, shown, unreadable
from laminabench.traces.table import Float64

_LOOK = 50
_BLOCK_BYTES = 1 << 24


def read(reading: Reading) -> Requests:
    good = next((record for record in records(reading.source) if not record.problem), None)
    if good is None:
        return careful(reading, Columns("", ""))
    columns = choose(
        reading.layout, keys_of(reading.source), reading.columns, f"{reading.source.label}:{good.line}"
    )
    with contextlib.suppress(Doubtful, BadValueError, pa.ArrowException):
        return fast(reading, columns, good)
    return careful(reading, columns)


def keys_of(source: Source) -> list[str]:
    """Return the keys of the first good rows: a single one may lack some, or be malformed."""
    good = (record for record in records(source) if not record.problem)
    return list(dict.fromkeys(key for record in itertools.islice(good, _LOOK) for key in record.cells))


def fast(reading: Reading, columns: Columns, first: Record) -> Requests:
    """Read with Arrow, with the types that the first row shows."""
    fields = [(columns.prompt, pa.float64()), (columns.output, pa.float64())]
    if columns.blocks is not None:
        fields.append((columns.blocks, pa.list_(pa.int64())))
    for name, number in ((columns.arrival, pa.float64()), (columns.session, pa.int64())):
        if name is not None:
            fields.append((name, number if isinstance(first.cells.get(name), Written) else pa.string()))
    with CleanUtf8(reading.source) as stream:
        table = pa.json.read_json(
            stream,
            read_options=pa.json.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
            ),
        )
        # Arrow also takes two objects on a line, or one on two: not ours to guess at.
        if len(table) == 0 or len(table) != stream.newlines + (stream.last != b"\n"):
            raise Doubtful("not one object a line")
    arrival_s = _arrivals(table[columns.arrival], reading) if columns.arrival is not None else None
    return all_rows(table, columns, arrival_s)


def careful(reading: Reading, columns: Columns) -> Requests:
    return requests_from(records(reading.source), columns, reading)


def _arrivals(column: pa.ChunkedArray, reading: Reading) -> Float64:
    no_nulls(column)
    if column.type != pa.float64():
        clock = Clock(column[0].as_py(), reading.time_unit, reading.layout.times)
        if not clock.dates:
            raise Doubtful("a number in quotes")
        return clock.seconds(column)
    exact = exact_seconds(numpy_of(column), PER_SECOND[reading.time_unit])
    if exact is None:
        raise Doubtful("more digits than a float has")  # the careful path keeps the text
    return np.asarray(exact)


def records(source: Source) -> Iterator[Record]:
    for number, line in enumerate(source.lines("\n"), 1):
        if trouble := unreadable(line):
            yield Record(number, {}, trouble)
            continue
        if not line.strip():
            continue
        try:
            # Numbers stay text: no digits are lost, and 1 is not true.
            value = json.loads(line, parse_int=Written, parse_float=Written, parse_constant=Written)
        except RecursionError:
            yield Record(number, {}, "is nested too deeply")
        except json.JSONDecodeError as error:
            yield Record(number, {}, f"is not JSON: {error.msg} at column {error.colno}")
        else:
            if isinstance(value, dict):
                yield Record(number, value)
            else:
                yield Record(number, {}, f"is {shown(value)}, not a JSON object")
