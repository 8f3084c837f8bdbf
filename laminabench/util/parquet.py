"""Parquet files, opened here: Arrow takes a path with a colon for a URI, and names in UTF-8 only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile, ParquetWriter  # noqa: TID251 - with opened files

from laminabench.util import safe_parse
from laminabench.util.errors import UserError

__all__ = ["ParquetFile", "bounded", "reading", "table_of", "writing"]
# Rows that are unpacked at once: of equal texts, which take next to nothing in a file.
_ROWS = 512


@contextlib.contextmanager
def reading(path: Path, **options: Any) -> Iterator[ParquetFile]:
    """Open a parquet file; a UserError for a pipe, an OSError or pa.ArrowException if it is damaged."""
    safe_parse.require_file(path)
    with pa.OSFile(os.fsencode(path)) as file, ParquetFile(file, **options) as table:
        yield table


def table_of(path: Path) -> pa.Table:
    """Return a whole parquet file; a UserError if it would take more memory than is plausible."""
    with reading(path) as file:
        return bounded(file, path, file.schema_arrow.names)


def bounded(file: ParquetFile, path: Path, columns: list[str]) -> pa.Table:
    """Return columns of the file that was opened at `path`, as `table_of` does."""
    _require_plausible(path, 8 * file.metadata.num_rows * len(columns))
    unpacked, batches = 0, []
    for batch in file.iter_batches(_ROWS, columns=columns):
        _require_plausible(path, unpacked := unpacked + batch.nbytes)
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else file.read(columns)


def _require_plausible(path: Path, unpacked: int) -> None:
    if safe_parse.is_bomb(size := path.stat().st_size, unpacked):
        raise UserError(
            "file-packed-too-well",
            f"{path} has {size:,} bytes and would unpack to {unpacked:,} and more: it is not read",
        )


@contextlib.contextmanager
def writing(path: Path, schema: pa.Schema, **options: Any) -> Iterator[ParquetWriter]:
    """Begin a parquet file, compressed with zstd."""
    with (
        pa.OSFile(os.fsencode(path), "wb") as file,
        ParquetWriter(file, schema, compression="zstd", **options) as writer,
    ):
        yield writer
