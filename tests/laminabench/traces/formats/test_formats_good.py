"""Well-formed files of every format, as found in the wild, compressed or not; and parquet of other people."""

from __future__ import annotations

import bz2
import gzip
import hashlib
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.traces.formats import FORMATS, detect, load_file
from laminabench.traces.formats.source import plain_name
from laminabench.util.errors import UserError

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-12 00:00:00+00:00,100,10\n"
    "2024-05-12 00:00:00.001163+00:00,200,20\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27, "input_length": 512, "output_length": 6, "hash_ids": [0]}\n'
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,7,1.5,ChatGPT,472,18,490,Conversation log\n"
    "45.5,,2,GPT-4,1087,0,1087,API log\n"
    "118,9,2,GPT-4,417,276,693,API log\n"
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,10,1\n0.25,20,2\n"
LENGTHS = (
    "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\r\n74,918,992,0.08\r\n5,6,11,0.8\r\n"
)


@pytest.mark.parametrize(
    ("content", "format_", "columns"),
    [
        (AZURE, "azure", ([0, 4.314579], [374, 396], [44, 109])),
        (AZURE_2024, "azure", ([0, 0.001163], [100, 200], [10, 20])),
        (MOONCAKE, "mooncake", ([0, 0.027], [600, 512], [5, 6])),
        (BURSTGPT, "burstgpt", ([0, 113], [472, 417], [18, 276])),
        (VIDUR, "vidur", ([0, 0.25], [10, 20], [1, 2])),
        (LENGTHS, "sharegpt-lengths", ([0, 0], [74, 5], [918, 6])),
        ("prompt_tokens,output_tokens\n3,4\n", "csv", ([0], [3], [4])),
        ('{"prompt_tokens": 3, "output_tokens": 4.0}\n', "jsonl", ([0], [3], [4])),
    ],
)
def test_detected_and_read(trace_file, content, format_, columns):
    arrivals, prompts, outputs = columns
    path = trace_file(content)
    assert detect(path) == format_
    for chosen in ("auto", format_):
        trace = load_file(path, format=chosen)
        assert trace.arrival_s.tolist() == arrivals
        assert trace.prompt_tokens.tolist() == prompts
        assert trace.output_tokens.tolist() == outputs
        assert trace.meta.has_arrivals == any(arrivals)
        assert trace.meta.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (trace.meta.name, trace.meta.origin, trace.meta.source) == ("trace", str(path), "file")


def test_every_format_says_what_it_is():
    assert list(FORMATS)[:3] == ["azure", "mooncake", "burstgpt"]
    assert len(FORMATS) == 9
    assert all(layout.about for layout in FORMATS.values())


def test_other_columns_of_a_format_are_retained(trace_file):
    blocks = load_file(trace_file(MOONCAKE))
    assert [blocks.prefix_blocks[row].tolist() for row in range(2)] == [[0, 1], [0]]
    assert blocks.meta.block_tokens == 512
    sessions = load_file(trace_file(BURSTGPT))
    assert "1 of 3 requests have no output" in sessions.meta.notes[0]
    assert sessions.session.tolist() == [7, 9]
    times = load_file(trace_file(AZURE))
    assert (times.arrival_s.dtype, times.prompt_tokens.dtype) == (np.float64, np.int32)


def test_named_sessions_are_numbered_and_absent_ones_are_alone(trace_file):
    rows = "".join(f"1,1,{name}\n" for name in ["b", "a", "", "b", ""])
    trace = load_file(trace_file("prompt_tokens,output_tokens,session\n" + rows))
    assert trace.session.tolist() == [0, 1, 2, 0, 3]


def test_columns_unit_and_name_by_the_users_word(trace_file):
    path = trace_file("when;in;out;who\n1700000000000;10;1;x\n1700000000250;11;2;x\n")
    columns = {"arrival": "when", "prompt": "in", "output": "out", "session": "who"}
    trace = load_file(path, columns=columns, time_unit="ms", name="mine")
    assert trace.arrival_s.tolist() == [0, 0.25]
    assert trace.session.tolist() == [0, 0]
    assert trace.meta.name == "mine"


@pytest.mark.parametrize(
    ("first", "second", "unit", "seconds"),
    [
        ("1700000000.123456789", "1700000000.123456790", "s", 1e-9),
        ("1700000000123456789", "1700000000123456790", "ns", 1e-9),
        ("1700000000123456.7", "1700000000123456.8", "us", 1e-7),
        ("2023-11-16T18:15:46.123456789Z", "2023-11-16T18:15:46.123456790Z", "s", 1e-9),
        ("2023-11-16 01:00:00+01:00", "2023-11-16 00:00:00.5-0030", "s", 1800.5),
        (" 2023-11-16 01:00:00 ", "2023-11-16 01:00:01", "s", 1.0),
        ("2023-11-16 01:00", "2023-11-16", "s", -3600.0),
        ("5", "5.0e1", "s", 45.0),
        ("-1.5", "+.5", "s", 2.0),
        ("0", "0.30000000000000004", "s", 0.30000000000000004),
    ],
)
def test_arrivals_are_exact(trace_file, first, second, unit, seconds):
    path = trace_file(f"time,input_tokens,output_tokens\n{first},10,1\n{second},11,1\n")
    assert load_file(path, time_unit=unit).arrival_s.tolist() == [0, abs(seconds)]


@pytest.mark.parametrize("first", ['"2024-05-31T01:00:00Z"', "1700000000123456789", "1700000000.123456789"])
def test_json_arrivals_are_exact(trace_file, first):
    second = first.replace("00Z", "00.000000001Z").replace("789", "790")
    rows = "".join(f'{{"time": {time}, "input_tokens": 1, "output_len": 2}}\n' for time in (first, second))
    trace = load_file(trace_file(rows), time_unit="s" if "." in first or "T" in first else "ns")
    assert trace.arrival_s.tolist() == [0, 1e-9]


def test_rows_out_of_order_are_sorted_with_their_columns(trace_file):
    rows = [(2, 20, "[3]"), (1, 10, "[]"), (3, 30, "[4, 5]")]
    text = "".join(
        f'{{"arrival_s": {a}, "prompt_tokens": {p}, "output_tokens": 1, "session": "{p}", "blocks": {b}}}\n'
        for a, p, b in rows
    )
    trace = load_file(trace_file(text))
    assert trace.prompt_tokens.tolist() == [10, 20, 30]
    assert trace.session.tolist() == [10, 20, 30]
    assert [trace.prefix_blocks[row].tolist() for row in range(3)] == [[], [3], [4, 5]]
    assert "backwards" in trace.meta.notes[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("row", ["{},{}", '"{}","{}"', " {} ,\t{}", "{}.0,{}"])
def test_spellings_of_a_table(trace_file, end, row):
    lines = ["prompt_tokens,output_tokens", "", row.format(3, 4), "  ", row.format(5, 6), ""]
    trace = load_file(trace_file(end.join(lines)))
    assert trace.prompt_tokens.tolist() == [3, 5]
    assert trace.output_tokens.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ('text,prompt_tokens,output_tokens\n"a, ""b""\nc",3,4\nplain,5,6\n', [3, 5]),
        ("x,prompt_tokens,x,output_tokens,\na,1,b,2,c\n", [1]),  # columns not read may share a name
    ],
)
def test_other_columns_hold_what_they_like(trace_file, content, prompts):
    assert load_file(trace_file(content)).prompt_tokens.tolist() == prompts


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("content", [VIDUR, MOONCAKE])
def test_encodings_with_a_mark(trace_file, encoding, content):
    text = content.replace("arrived_at", "größe,arrived_at").replace("\n0.", "\nŁ,0.")
    trace = load_file(trace_file(text.encode(encoding)))
    assert trace.output_tokens.tolist() == ([1, 2] if content is VIDUR else [5, 6])


TABLE = b"arrived_at,num_prefill_tokens,num_decode_tokens\n" + b"".join(
    b"%d.25,%d,%d\n" % (row, row % 999 + 1, row * 7919 % 101 + 1) for row in range(3000)
)
LINES = b'{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n' * 9


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "zstd": zstd}


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("content", [TABLE, LINES, b"\xef\xbb\xbf" + TABLE, TABLE.decode().encode("utf-16")])
def test_read_whatever_the_suffix(trace_file, kind, content):
    path, plain = trace_file(COMPRESS[kind](content), "trace.csv.xyz"), trace_file(content, "plain")
    trace, expected = load_file(path), load_file(plain)
    assert detect(path) == detect(plain)
    assert trace.arrival_s.tolist() == expected.arrival_s.tolist()
    assert trace.output_tokens.tolist() == expected.output_tokens.tolist()
    assert trace.meta.name == "trace.csv.xyz"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("v1.2.csv", "v1.2"),
        ("v1.2.jsonl.gz", "v1.2"),
        ("Mine.CSV.ZST", "Mine"),
        ("v1.2", "v1.2"),
        ("a.parquet", "a"),
        ("a.json.csv", "a.json"),
        (".csv", ".csv"),
    ],
)
def test_a_name_is_the_file_name_without_known_suffixes(file, name):
    assert plain_name(Path("some.csv") / file) == name


def test_two_members_one_after_the_other(trace_file):
    assert len(load_file(trace_file(gzip.compress(TABLE[:5000]) + gzip.compress(TABLE[5000:])))) == 3000


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
def test_cut_short(trace_file, kind, keep):
    whole = COMPRESS[kind](TABLE)
    with pytest.raises(UserError, match="trace-damaged") as caught:
        load_file(trace_file(whole[: int(len(whole) * keep)]))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["gzip", "bz2"])
def test_damaged(trace_file, kind):
    data = bytearray(COMPRESS[kind](TABLE))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(UserError, match="trace-damaged"):
        load_file(trace_file(data))


def test_lines_are_those_of_the_content(trace_file):
    with pytest.raises(UserError, match="trace-bad-row"):
        load_file(trace_file(gzip.compress(TABLE + b"1,x,1\n")))


LLAMA2 = "sharegpt_8k_filtered_stats_llama2_tokenizer.csv"


@pytest.mark.parametrize(
    ("file", "format_", "requests", "means", "sha256"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19366, (1154.697, 211.126), "2f1e5b666d4e"),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8819, (2047.848, 27.883), "54e9a6d2a4bd"),
        ("conversation_trace.jsonl", "mooncake", 12031, (12035.061, 342.619), "b8cbb061a852"),
        (LLAMA2, "sharegpt-lengths", 30731, (2340.034, 438.710), "6d6c296302a8"),
    ],
)
def test_counts_and_means(file, format_, requests, means, sha256, real_traces):
    path = real_traces / file
    if not path.exists():
        pytest.skip(f"{file} is not in $LAMINABENCH_TRACES")
    trace = load_file(path)
    assert detect(path) == format_
    assert len(trace) == requests
    assert round(float(trace.prompt_tokens.mean()), 3) == means[0]
    assert round(float(trace.output_tokens.mean()), 3) == means[1]
    assert trace.meta.sha256.startswith(sha256)
    assert trace.meta.notes == ()
    assert (trace.prefix_blocks is not None) == (format_ == "mooncake")
    assert (trace.duration_s > 3400) == trace.meta.has_arrivals


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
