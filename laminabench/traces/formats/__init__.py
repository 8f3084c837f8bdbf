"""Trace files: whatever a user points at becomes a checked Trace, or one sentence about what to fix."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from laminabench.traces.formats.arrivals import PER_SECOND
from laminabench.traces.formats.layout import FORMATS, PARTS, Container
from laminabench.traces.formats.limits import Limits
from laminabench.traces.formats.reading import Reading, Requests
from laminabench.traces.formats.source import Source, plain_name
from laminabench.traces.formats.wording import shown
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

__all__ = ["FORMATS", "detect", "load_file"]


def _read(reading: Reading) -> Requests:
    """Read with the container's reader, imported late: each imports another, slow, part of pyarrow."""
    container = reading.layout.container
    if container == "delimited":
        from laminabench.traces.formats.delimited import read
    elif container == "jsonlines":
        from laminabench.traces.formats.jsonlines import read
    elif container == "parquet":
        from laminabench.traces.formats.parquet import read
    else:
        from laminabench.traces.formats.sharegpt import read
    return read(reading)


class _Hashing(threading.Thread):
    """The sha256 of a file, computed while it is read."""

    def __init__(self, source: Source) -> None:
        super().__init__(daemon=True)
        self._source = source
        self.sha256 = ""
        self.start()

    def run(self) -> None:
        with contextlib.suppress(UserError):  # which the reader meets too
            self.sha256 = self._source.sha256()

    def sum(self) -> str:
        self.join()  # waits: for as long as a file takes to read
        return self.sha256 or self._source.sha256()


def detect(path: Path) -> str:
    """Return the name of the format a file is in, by its content; its suffix says nothing."""
    return _detect(Source.of(path))


def load_file(
    path: Path,
    *,
    format: str = "auto",  # noqa: A002 - as the flag is called
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    time_unit: str = "s",
    skip_bad: bool = False,
    tokenizer: Path | None = None,
    limits: Limits | None = None,
) -> Trace:
    """Return the trace in a file. Any doubt about it is a UserError that says where and what to do."""
    if format not in FORMATS and format != "auto":
        raise UserError(
            "trace-unknown-format", f"no format {shown(format)}; {nearest(format, ['auto', *FORMATS])}"
        )
    if time_unit not in PER_SECOND:
        raise UserError(
            "trace-unknown-time-unit", f"no time unit {shown(time_unit)}; there are: {', '.join(PER_SECOND)}"
        )
    for part in columns or {}:
        if part not in PARTS:
            raise UserError(
                "trace-unknown-column-option", f"--columns knows no {shown(part)}; {nearest(part, PARTS)}"
            )
    source = Source.of(path, limits)
    hashing = _Hashing(source)
    layout = FORMATS[_detect(source) if format == "auto" else format]
    # A format with a unit of its own keeps it, unless the user names another than the usual.
    unit = layout.time_unit if time_unit == "s" else time_unit
    requests = _read(Reading(source, layout, columns or {}, unit, skip_bad, tokenizer))
    notes = requests.notes
    if requests.arrival_s is None and layout.container != "conversations" and not layout.signature:
        notes += (
            "no column with arrival times; if there is one: laminabench traces import FILE --columns "
            "arrival=NAME",
        )
    meta = requests.meta or TraceMeta(
        name or plain_name(path),
        origin=str(path),
        tokenizer=str(tokenizer or ""),
        has_arrivals=requests.arrival_s is not None,
        block_tokens=layout.block_tokens,
    )
    meta = replace(meta, name=name or meta.name, sha256=meta.sha256 or hashing.sum())
    arrival_s = requests.arrival_s
    if arrival_s is None:
        arrival_s = np.zeros(len(requests.prompt_tokens))
    return make_trace(
        arrival_s,
        requests.prompt_tokens,
        requests.output_tokens,
        meta.with_note(*notes),
        prefix_blocks=requests.blocks,
        session=requests.session,
    )


def _detect(source: Source) -> str:
    if source.head.startswith(b"PAR1"):
        return "parquet"
    text = source.head.decode(source.encoding, errors="replace").lstrip()
    if text.startswith("["):
        return "sharegpt"
    container: Container = "jsonlines" if text.startswith("{") else "delimited"
    if container == "jsonlines":
        from laminabench.traces.formats.jsonlines import keys_of

        names = keys_of(source)
    else:
        from laminabench.traces.formats.delimited import header_of

        names = header_of(source).names
    for name, layout in FORMATS.items():
        if layout.container == container and layout.signature and set(layout.signature) <= set(names):
            return name
    return "jsonl" if container == "jsonlines" else "csv"
