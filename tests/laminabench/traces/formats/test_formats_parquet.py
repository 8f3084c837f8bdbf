"""Parquet files of other people: any column type that makes sense, one sentence for the others."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.errors import UserError
from laminabench.traces.formats import detect, load_file

START = datetime(2024, 5, 12, 0, 0, 0, 250)
TIMES = [START, START + timedelta(microseconds=1), START + timedelta(hours=1)]
SECONDS = [0, 1e-6, 3600]


@pytest.fixture
def parquet_file(tmp_path):
    def write(**columns: object) -> object:
        path = tmp_path / "foreign"
        pq.write_table(pa.table({"prompt_tokens": [1, 2, 3], "output_tokens": [4, 5, 6]} | columns), path)
        return path

    return write


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (pa.array(TIMES, pa.timestamp("us")), "s", SECONDS),
        (pa.array(TIMES, pa.timestamp("ns", "UTC")), "s", SECONDS),
        ([str(time) + "+00:00" for time in TIMES], "s", SECONDS),
        ([1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_500], "ms", [0, 0.001, 0.5]),
        (pa.array([1, 2, 4], pa.uint16()), "s", [0, 1, 3]),
        (pa.array([0.5, 1.0, 2.5], pa.float32()), "s", [0, 0.5, 2]),
        ([Decimal("0.25"), Decimal("0.50"), Decimal("1.00")], "s", [0, 0.25, 0.75]),
        (pa.array([1, 2, 3], pa.date32()), "s", [0, 86400, 172800]),
    ],
)
def test_times(parquet_file, times, unit, expected):
    path = parquet_file(when=times)
    assert detect(path) == "parquet"
    trace = load_file(path, columns={"arrival": "when"}, time_unit=unit)
    np.testing.assert_allclose(trace.arrival_s, expected, rtol=1e-15)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(25, 1)])
def test_counts(parquet_file, kind):
    trace = load_file(parquet_file(prompt_tokens=pa.array([7, 8, 9]).cast(kind)))
    assert trace.prompt_tokens.tolist() == [7, 8, 9]
    assert not trace.meta.has_arrivals


def test_sessions_and_blocks(parquet_file):
    path = parquet_file(
        session_id=["b", None, "b"], hash_ids=pa.array([[1], [], [2, 3]], pa.list_(pa.int32()))
    )
    trace = load_file(path)
    assert trace.session.tolist() == [0, 1, 0]
    assert [trace.prefix_blocks[row].tolist() for row in range(3)] == [[1], [], [2, 3]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_tokens": [1, None, 3]}, "row 2: prompt_tokens is null, not a whole number"),
        ({"prompt_tokens": [1, 2, 3.5]}, "row 3: prompt_tokens is 3.5, not a whole number"),
        ({"prompt_tokens": [1, float("nan"), 2]}, 'row 2: prompt_tokens is "nan", not a whole number'),
        ({"output_tokens": [1, -1, 2]}, "row 2: output_tokens is -1, below 0"),
        ({"output_tokens": [1, 1, 1 << 40]}, "row 3: output_tokens is 1099511627776, more than 16,777,216"),
        ({"time": [1.0, float("inf"), 2]}, 'row 2: time is "inf", not a number'),
        ({"time": [1, None, 2]}, "row 2: time is null, not a time"),
        ({"time": pa.array([None, *TIMES[1:]])}, "row 1: time is null, not a time"),
        (
            {"time": ["2024-01-01", "soon", None]},
            'row 2: time is "soon", not a date-time as in the other rows',
        ),
        ({"time": ["", None, "1"]}, "row 1: time is empty, neither a number nor a date-time"),
        ({"blocks": [[1], None, [2]]}, "row 2: blocks is null, not a list of block ids"),
        ({"blocks": [[1], [-1], [2]]}, "row 2: blocks holds -1, below 0"),
    ],
)
def test_bad_rows(parquet_file, columns, message):
    path = parquet_file(**columns)
    with pytest.raises(UserError) as caught:
        load_file(path)
    assert f"{path}: {message}" in str(caught.value)
    trace = load_file(path, skip_bad=True)
    assert 1 <= len(trace) < 3
    assert message in trace.meta.notes[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_tokens": ["1", "2", "3"]}, 'column "prompt_tokens" holds string, not whole numbers'),
        ({"output_tokens": [True, True, False]}, 'column "output_tokens" holds bool, not whole numbers'),
        ({"time": [b"1", b"2", b"3"]}, 'column "time" holds binary, not times'),
        ({"session": [1.5, 2.5, 3.5]}, 'column "session" holds double, not numbers or names'),
        ({"blocks": [1, 2, 3]}, 'column "blocks" holds int64, not lists of whole numbers'),
        ({"blocks": [["1"], [], []]}, "not lists of whole numbers"),
        ({"prompt_tokens": [0, 0, 0]}, "all rows are bad (3), the first at"),
        ({"time": [1, 2, 1 << 61]}, "over a century"),
    ],
)
def test_columns_that_cannot_be_read(parquet_file, columns, message):
    with pytest.raises(UserError) as caught:
        load_file(parquet_file(**columns), skip_bad=True)
    assert message in str(caught.value)


def test_no_rows(tmp_path):
    path = tmp_path / "empty"
    pq.write_table(
        pa.table({"prompt_tokens": pa.array([], pa.int64()), "output_tokens": pa.array([], pa.int64())}), path
    )
    with pytest.raises(UserError, match="trace-empty"):
        load_file(path)
