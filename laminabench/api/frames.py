"""Tables of a Run as data frames; pandas is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.runs.read import Run
from laminabench.runs.schema import TABLES, Column
from laminabench.runs.status import STATUSES
from laminabench.sim.outcome import Columns
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

    import pandas as pd


def requests(run: Run) -> pd.DataFrame:
    """Return one row per request, in the trace's order; `runs/schema.py` describes the columns."""
    lengths = {"prompt_tokens": run.prompt_tokens, "output_tokens": run.output_tokens}
    return _frame(TABLES["requests"], {**run.outcome.requests, **lengths})


def iterations(run: Run) -> pd.DataFrame:
    """Return one row per iteration, in order of start; empty if the Run has none."""
    prompts = run.outcome.prompts
    columns = {**run.outcome.iterations, **({} if prompts is None else prompts)}
    return _frame((*TABLES["iterations"], *(TABLES["prompts"] if prompts else ())), columns)


def _frame(columns: tuple[Column, ...], values: Columns) -> pd.DataFrame:
    """Return the columns as a frame; values that do not exist are NaN or <NA>."""
    pd = pandas()
    series = {}
    for column in columns:
        array = values[column.name]
        if column.name == "status":
            series[column.name] = pd.Categorical.from_codes(array, categories=list(STATUSES))
        elif np.issubdtype(array.dtype, np.integer) and (array < 0).any():
            series[column.name] = pd.arrays.IntegerArray(array.astype(np.int64), array < 0)
        else:
            series[column.name] = array
    frame = pd.DataFrame(series, copy=True)
    frame.attrs["columns"] = {column.name: column.doc for column in columns}
    return frame


def pandas() -> ModuleType:
    """Import pandas, or raise an error that says how to install it."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise UserError(
            "python-needs-pandas",
            "data frames need pandas, which is not installed: pip install 'laminabench[figures]'",
        ) from error
    module: ModuleType = pandas
    return module
