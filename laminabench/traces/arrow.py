"""Arrow columns as numpy arrays and back, without the pandas that pyarrow's own conversions import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numpy_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column's numbers, which has no nulls; a view of Arrow's memory if it is in one piece."""
    assert column.null_count == 0
    if isinstance(column, pa.Array):
        dtype = _dtype_of(column.type)
        if len(column) == 0:
            return np.empty(0, dtype)
        return np.frombuffer(column.buffers()[1], dtype)[column.offset :][: len(column)]
    chunks = [numpy_of(chunk) for chunk in column.chunks] or [numpy_of(pa.array([], column.type))]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _dtype_of(type_: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type of Arrow's memory; timestamps are whole numbers there."""
    if pa.types.is_timestamp(type_):
        return np.dtype(np.int64)
    return np.dtype("float64" if type_ == pa.float64() else str(type_))


def mask_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return numpy_of(column.cast(pa.uint8())).view(np.bool_)


def array_of(values: NDArray[Any], type_: pa.DataType, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow column of numbers over the memory of `values`, null where they are missing."""
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values, _dtype_of(type_)))
    return pa.Array.from_buffers(type_, len(values), [valid, data])


def texts_of(texts: Sequence[str]) -> pa.Array:
    """Return an Arrow column of a few strings."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)
