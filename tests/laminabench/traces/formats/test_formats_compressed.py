"""Compressed files, known by their first bytes and never trusted to be whole."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from laminabench.errors import UserError
from laminabench.traces.formats import detect, load_file
from laminabench.traces.formats.source import plain_name

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
def test_read_whatever_the_suffix(tmp_path, kind, content):
    path = tmp_path / "trace.csv.xyz"
    path.write_bytes(COMPRESS[kind](content))
    plain = tmp_path / "plain"
    plain.write_bytes(content)
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


def test_two_members_one_after_the_other(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(TABLE[:5000]) + gzip.compress(TABLE[5000:]))
    assert len(load_file(path)) == 3000


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
def test_cut_short(tmp_path, kind, keep):
    path = tmp_path / "trace"
    whole = COMPRESS[kind](TABLE)
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UserError, match="trace-damaged") as caught:
        load_file(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["gzip", "bz2"])
def test_damaged(tmp_path, kind):
    data = bytearray(COMPRESS[kind](TABLE))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UserError, match="trace-damaged"):
        load_file(path)


def test_lines_are_those_of_the_content(tmp_path):
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(TABLE + b"1,x,1\n"))
    with pytest.raises(UserError, match="trace-bad-row"):
        load_file(path)
