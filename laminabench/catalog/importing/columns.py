"""Columns of measurement files: names, kinds and values are checked once, as they are read."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laminabench.util import parquet, safe_parse
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Columns = dict[str, np.ndarray]
# Nothing beyond was measured, in any unit that files have; ratios and squares within are finite.
SHORTEST, LARGEST = 1e-9, 1e15
# Each kind of row is fitted by itself; tables have hundreds of them.
MOST_KINDS = 8192


def read_columns(
    path: Path,
    *,
    text: Collection[str] = (),
    counts: Collection[str] = (),
    times: Collection[str] = (),
    optional: Collection[str] = (),
) -> Columns:
    """Read columns of a CSV or parquet file: text, numbers from 0 on, and times above 0, as floats.

    Of these, `optional` ones may be absent. There must be at least one row.
    """
    columns: Columns = {}
    try:
        table = _table(path)
        for name in (*text, *counts, *times):
            present = table.column_names.count(name)
            if present == 1:
                of = table[name]
                columns[name] = _text(of) if name in text else _numbers(path, name, of, name in times)
            elif present or name not in optional:
                raise _refused(path, f"has {'no' if not present else 'more than one'} column {name}")
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8") from error
    if not table.num_rows:
        raise _refused(path, "has no rows")
    return columns


def read_frame(path: Path, **columns: Collection[str]) -> pd.DataFrame:
    """Read the same as a data frame."""
    import pandas as pd

    return pd.DataFrame(read_columns(path, **columns))


def _table(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    try:
        if path.suffix == ".parquet":
            return parquet.table_of(path)
        return csv.read_csv(io.BytesIO(safe_parse.content(path, safe_parse.RESULTS_BYTES)))
    except (OSError, pa.ArrowException) as error:
        raise _refused(path, f"cannot be read: {' '.join(str(error).split())[:200]}") from error


def _text(column: pa.ChunkedArray) -> np.ndarray:
    return np.array([str(value) for value in column.to_pylist()], object)


def _numbers(path: Path, name: str, column: pa.ChunkedArray, positive: bool) -> np.ndarray:
    from pyarrow import types

    if not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise _refused(path, f"column {name} is not of numbers but of {column.type}")
    numbers: np.ndarray = column.to_numpy(zero_copy_only=False).astype(np.float64)
    valid = (numbers >= (SHORTEST if positive else 0)) & (numbers <= LARGEST)
    if not valid.all():
        row = int(np.argmin(valid))
        within = f"{'above' if positive else 'from'} 0 to {LARGEST:g}"
        raise _refused(
            path,
            f"column {name} has {numbers[row]:g} in row {row + 1}; it needs a number {within}",
        )
    return numbers


def _refused(path: Path, why: str) -> UserError:
    return UserError("costs-no-measurements", f"{path}: {why}")
