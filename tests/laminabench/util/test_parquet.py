"""Parquet files of any name are written and read, and none unpacks to more than is plausible."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from laminabench.util import parquet, safe_parse
from laminabench.util.errors import UserError

# A scheme that Arrow knows, one that it does not, and what is not UTF-8.
NAMES = ("s3:t.parquet", "abc:def.parquet", os.fsdecode(b"\xff.parquet"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"a": [1, 2]})
    with parquet.writing(Path(name), table.schema) as writer:
        writer.write_table(table)
    assert parquet.table_of(Path(name)) == table


def test_a_table_that_unpacks_to_much_more(tmp_path: Path) -> None:
    table = pa.table({"a": pa.nulls(1 << 20, pa.int64())})
    with parquet.writing(tmp_path / "t", table.schema) as writer:
        for _ in range(200):
            writer.write_table(table)
    with pytest.raises(UserError, match="file-packed-too-well"):
        parquet.table_of(tmp_path / "t")


def test_equal_texts_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file there is one of them."""
    monkeypatch.setattr(safe_parse, "UNPACKED_BYTES", 1 << 20)
    table = pa.table({"a": ["x" * 10_000] * 2000})
    with parquet.writing(tmp_path / "t", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match="file-packed-too-well"):
        parquet.table_of(tmp_path / "t")


def test_a_table_without_rows(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([], pa.string())})
    with parquet.writing(tmp_path / "t", table.schema) as writer:
        writer.write_table(table)
    assert parquet.table_of(tmp_path / "t").equals(table)
