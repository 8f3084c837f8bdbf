"""Arrow columns as numpy arrays, without the pandas that pyarrow's own conversion imports (0.2 s)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numpy_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of a column that has no nulls; a view of Arrow's memory where it lies in one piece."""
    assert column.null_count == 0
    if isinstance(column, pa.Array):
        dtype = np.dtype("float64" if column.type == pa.float64() else str(column.type))
        if len(column) == 0:
            return np.empty(0, dtype)
        return np.frombuffer(column.buffers()[1], dtype)[column.offset :][: len(column)]
    chunks = [numpy_of(chunk) for chunk in column.chunks] or [numpy_of(pa.array([], column.type))]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def mask_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """A column of truth values, which Arrow keeps as bits."""
    return numpy_of(column.cast(pa.uint8())).view(np.bool_)
