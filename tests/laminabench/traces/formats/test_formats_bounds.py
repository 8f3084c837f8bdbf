"""The cost of reading a file is bounded by the size of real traces, unless the user raises the bound."""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.traces.formats import limits as module
from laminabench.traces.formats import load_file
from laminabench.traces.formats.limits import MOST_COLUMNS, Limits
from laminabench.util.errors import UserError

CSV = "arrival_s,prompt_tokens,output_tokens\n"


def constant(path: Path, rows: int) -> Path:
    """Equal rows, which parquet packs to next to nothing."""
    with pq.ParquetWriter(
        path, pa.schema([("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())])
    ) as file:
        part = pa.array(np.ones(1 << 20, np.int32))
        for _ in range(rows >> 20):
            file.write_table(pa.table({"prompt_tokens": part, "output_tokens": part}))
    return path


def test_a_small_parquet_of_very_many_rows_is_refused_before_there_is_room_for_them(tmp_path: Path) -> None:
    path = constant(tmp_path / "bomb.parquet", 5 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="trace-packed-too-well"):
        load_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
    assert len(load_file(path, limits=Limits(5 << 20))) == 5 << 20


@pytest.mark.parametrize("row", ["1,1,1\n", "1, 1 ,1\n"], ids=["fast", "careful"])
def test_a_compressed_file_is_bounded_by_its_ratio(
    trace_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    monkeypatch.setattr(module, "_FREE_BYTES", 1 << 20)
    path = trace_file(gzip.compress((CSV + row * 300_000).encode()))
    with pytest.raises(UserError, match="trace-packed-too-well"):
        load_file(path)
    assert len(load_file(path, limits=Limits(300_001))) == 300_000
    assert len(load_file(trace_file(CSV + row * 300_000))) == 300_000


@pytest.mark.parametrize(
    "content",
    [CSV + "1,1,1\n" * 3000, CSV + "1, 1 ,1\n" * 3000, '{"prompt_tokens": 1, "output_tokens": 1}\n' * 3000],
    ids=["fast", "careful", "jsonl"],
)
def test_no_more_rows_than_the_limit_are_read(trace_file: Callable[..., Path], content: str) -> None:
    path = trace_file(content)
    with pytest.raises(UserError, match="trace-too-many-rows"):
        load_file(path, limits=Limits(1500))
    assert len(load_file(path, limits=Limits(3000))) == 3000


def test_rows_of_very_much_text_are_refused(
    trace_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FREE_BYTES", 1 << 16)
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    line = json.dumps({"prompt_tokens": 1, "output_tokens": 1, "text": "x" * 5000}) + "\n"
    with pytest.raises(UserError, match="trace-too-large"):
        load_file(trace_file(line * 90))


def test_very_many_columns_are_no_trace(trace_file: Callable[..., Path], tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(MOST_COLUMNS + 1))
    with pytest.raises(UserError, match="trace-too-many-columns"):
        load_file(trace_file(f"{names}\n1\n"))
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"c{number}": [1] for number in range(MOST_COLUMNS + 1)}), path)
    with pytest.raises(UserError, match="trace-too-many-columns"):
        load_file(path)


@pytest.mark.parametrize("line", ['{"a": ' + "[" * 200_000, '{"prompt_tokens": "' + "x" * (1 << 24)])
def test_a_line_without_end_is_one_sentence(trace_file: Callable[..., Path], line: str) -> None:
    with pytest.raises(UserError, match=r"trace-(bad-row|not-text)"):
        load_file(trace_file(line))
