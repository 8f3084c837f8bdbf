"""Traces as data frames, for Python users: `laminabench.traces.list()`, `load` and `from_frame`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from laminabench.traces import catalogue
from laminabench.traces.formats import load_file
from laminabench.traces.resolve import data_file, resolve
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def listed() -> pd.DataFrame:
    """Return the traces known by name: a row each, with what is on this machine of it.

    Examples:
        >>> import laminabench as lb
        >>> print(lb.traces.list().loc["azure-conv", "requests"])
        19366
    """
    import pandas as pd

    from laminabench.traces.profile import named_profile

    rows: list[tuple[str | int | None, ...]] = []
    for entry in catalogue.entries().values():
        requests = entry.published.requests if entry.published else named_profile(entry.name).requests
        file = data_file(entry)
        details = (entry.description, requests, entry.license, None if file is None else str(file))
        rows.append((entry.name, *details))
    rows += [
        (name, "imported", None, None, str(catalogue.imported_path(name)))
        for name in catalogue.imported_names()
    ]
    frame = pd.DataFrame(rows, columns=["name", "description", "requests", "license", "file"])
    return frame.set_index("name")


def load(trace: str, *, num_requests: int | None = None, offline: bool = False) -> pd.DataFrame:
    """Return a trace as a data frame, a row for each request; `attrs` says where it is from.

    A name of the catalogue, a file, or `profile:NAME`, as `laminabench replay --trace` takes it.

    Examples:
        >>> import laminabench as lb
        >>> requests = lb.traces.load("profile:azure-conv")
        >>> list(requests.columns), requests.attrs["source"]
        (['arrival_s', 'prompt_tokens', 'output_tokens'], 'profile')
    """
    resolved = resolve(trace, offline=offline, requests=num_requests)
    return to_frame(resolved if num_requests is None else resolved.first(num_requests))


def to_frame(trace: Trace) -> pd.DataFrame:
    """Return the columns of a trace; sessions and prefix blocks where it has them."""
    import pandas as pd

    frame = pd.DataFrame({name: getattr(trace, name) for name in ("prompt_tokens", "output_tokens")})
    if trace.meta.has_arrivals:
        frame.insert(0, "arrival_s", trace.arrival_s)
    if trace.session is not None:
        frame["session"] = trace.session
    if (blocks := trace.prefix_blocks) is not None:
        frame["prefix_blocks"] = [blocks[row].tolist() for row in range(len(blocks))]
    frame.attrs.update(name=trace.meta.name, source=trace.meta.source, sha256=trace.meta.sha256)
    return frame


def from_frame(frame: pd.DataFrame, name: str = "dataframe") -> Trace:
    """Return a data frame as a trace: `prompt_tokens`, `output_tokens`, and perhaps `arrival_s` and others.

    Columns may have the names that `laminabench replay` knows of files, and are checked as a file's are.

    Examples:
        >>> import laminabench as lb, pandas as pd
        >>> len(lb.traces.from_frame(pd.DataFrame({"prompt_tokens": [9, 1], "output_tokens": [5, 7]})))
        2
    """
    if not len(frame):
        raise UserError("trace-empty", f"{name}: no requests in it; a trace needs at least one row")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frame.parquet"
        try:
            with path.open("wb") as file:
                frame.to_parquet(file, engine="pyarrow", index=False)
        except (ValueError, TypeError) as error:  # Arrow's own are of these kinds
            raise UserError(
                "trace-frame", f"{name}: its columns cannot be written as a table: {error}"
            ) from error
        try:
            loaded = load_file(path, name=name)
        except UserError as error:
            raise UserError(error.code, error.sentence.replace(str(path), name)) from error
    return replace(loaded, meta=replace(loaded.meta, origin="a DataFrame"))
