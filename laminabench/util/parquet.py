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

__all__ = ["ParquetFile", "reading", "table_of", "writing"]


@contextlib.contextmanager
def reading(path: Path, **options: Any) -> Iterator[ParquetFile]:
    """Open a parquet file; a UserError for a pipe, an OSError or pa.ArrowException if it is damaged."""
    safe_parse.require_file(path)
    with pa.OSFile(os.fsencode(path)) as file, ParquetFile(file, **options) as table:
        yield table


def table_of(path: Path) -> pa.Table:
    """Return a whole parquet file; a UserError if it would take more memory than is plausible."""
    with reading(path) as file:
        size, cells = path.stat().st_size, file.metadata.num_rows * file.metadata.num_columns
        if safe_parse.is_bomb(size, 8 * cells):
            raise UserError(
                "file-packed-too-well",
                f"{path} has {size:,} bytes and would unpack to {cells:,} numbers: it is not read",
            )
        return file.read()


@contextlib.contextmanager
def writing(path: Path, schema: pa.Schema, **options: Any) -> Iterator[ParquetWriter]:
    """Begin a parquet file, compressed with zstd."""
    with (
        pa.OSFile(os.fsencode(path), "wb") as file,
        ParquetWriter(file, schema, compression="zstd", **options) as writer,
    ):
        yield writer
