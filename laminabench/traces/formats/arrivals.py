"""Arrival times as people write them, to seconds after the first row."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import pyarrow as pa

from laminabench.traces.arrow import numpy_of
from laminabench.traces.formats.wording import BadValueError, Doubtful
from laminabench.traces.table import Float64, Int64

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Differences must fit into int64; nothing that is a time comes near.
LIMIT = 1 << 62
# Each digit is of one part only: else a long one that is no number would take its length squared.
NUMBER = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATETIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)(?:[ T](?P<time>\d\d(?::\d\d(?::\d\d)?)?)(?P<fraction>\.\d+)? ?"
    r"(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)


class Clock:
    """Format of a file's arrivals: settled by its format or its first row, binding for all."""

    def __init__(self, first: str, unit: str, times: str = "either") -> None:
        first = first.strip(" \t")
        match = _DATETIME.fullmatch(first)
        self.per_second = PER_SECOND[unit]
        self.dates = match is not None
        self.zoned = match is not None and match["zone"] is not None
        if match is None and times == "dates":
            raise BadValueError("not a date-time like 2024-05-31 18:15:46.5")
        if match is not None and times == "numbers":
            raise BadValueError("not a number")
        if match is None and not NUMBER.fullmatch(first):
            raise BadValueError("neither a number nor a date-time like 2024-05-31 18:15:46.5")

    def column_type(self) -> pa.DataType:
        """Return the type Arrow may read the column as: dates it may parse, numbers must stay texts."""
        return pa.timestamp("ns", "UTC" if self.zoned else None) if self.dates else pa.string()

    def seconds(self, texts: pa.ChunkedArray) -> Float64:
        """Convert exactly to the last written digit where 64 bits allow it; Arrow refuses what is no time."""
        if self.dates:
            read = texts.type == self.column_type()
            return since_first(numpy_of(texts if read else texts.cast(self.column_type())), 10**9)
        values = numpy_of(texts.cast(pa.float64()))
        exact = exact_seconds(values, self.per_second)
        if exact is not None:
            return exact
        if (values == np.floor(values)).all():
            try:
                return since_first(numpy_of(texts.cast(pa.int64())), self.per_second)
            except pa.ArrowInvalid:
                pass  # whole, but written as 1.7e18 or 5.0
        billionths = _billionths_since_first(texts)
        if billionths is not None:
            return np.asarray(billionths / (self.per_second * 10**9))
        return np.asarray((values - values[0]) / self.per_second)

    def normal(self, text: str) -> str:
        """Return a time in the form that `seconds` takes; a BadValueError if it has none."""
        text = text.strip(" \t")
        match = _DATETIME.fullmatch(text)
        if self.dates and match is None:
            raise BadValueError("not a date-time as in the other rows")
        if match is None:
            if not NUMBER.fullmatch(text):
                raise BadValueError("not a number")
            if abs(float(text)) >= LIMIT:
                raise BadValueError("too large for a time")
            return text
        if not self.dates:
            raise BadValueError("a date-time, but the other rows hold numbers")
        if (match["zone"] is not None) != self.zoned:
            raise BadValueError(f"{'without' if self.zoned else 'with'} a time zone, unlike the other rows")
        return _normal_datetime(match)


def exact_seconds(values: Float64, per_second: int) -> Float64 | None:
    """Return the seconds after the first, if the floats lost nothing that was written; Doubtful if one is no
    time.
    """
    if not (np.abs(values) < LIMIT).all():
        raise Doubtful("not a time")
    if per_second == 1 and values[0] == 0:
        return values
    if (values == np.floor(values)).all() and np.abs(values).max() <= 1 << 52:
        return np.asarray((values - values[0]) / per_second)
    return None


def since_first(ticks: Int64, per_second: int) -> Float64:
    """Subtract before dividing: 1.7e9 s since 1970 leaves a float no more than 0.2 us."""
    if len(ticks) and (int(ticks.max()) >= LIMIT or int(ticks.min()) <= -LIMIT):
        raise Doubtful("not a time")
    seconds: Float64 = (ticks - ticks[0]) / per_second
    return seconds


def _billionths_since_first(texts: pa.ChunkedArray) -> Int64 | None:
    """Return differences times 10**9, if the numbers have at most nine decimals and the differences fit."""
    import pyarrow.compute as pc

    try:
        column = texts.cast(pa.decimal128(28, 9)).combine_chunks()
        column = pc.subtract(column, column[0])
    except pa.ArrowException:
        return None
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset :][: 2 * len(column)]
    low, high = words[0::2], words[1::2]
    return low if np.array_equal(high, low >> 63) else None


def _normal_datetime(match: re.Match[str]) -> str:
    time = match["time"] or "00"
    time += ":00" * (2 - time.count(":"))
    try:
        year = datetime.fromisoformat(f"{match['date']} {time}").year
    except ValueError as error:
        raise BadValueError("not a date-time that exists") from error
    if not 1824 <= year <= 2115:  # LIMIT in nanoseconds
        raise BadValueError("not within the years 1824 to 2115")
    zone = match["zone"] or ""
    if len(zone) > 1:  # an offset: as +hh:mm
        digits = zone[1:].replace(":", "").ljust(4, "0")
        zone = f"{zone[0]}{digits[:2]}:{digits[2:]}"
    return f"{match['date']} {time}{(match['fraction'] or '')[:10]}{zone}"
