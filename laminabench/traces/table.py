"""A trace in memory: one array a column, checked once, then read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import NDArray

from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

# No model serves prompts or answers this long; a larger number is a wrong column or a wrong unit.
MAX_TOKENS = 1 << 24
# More would not fit into anybody's memory.
MAX_REQUESTS = 10**9
# A century: a longer trace is a wrong time unit.
MAX_SPAN_S = 100 * 365.25 * 86400

Source = Literal["file", "profile"]


class TraceMeta(msgspec.Struct, frozen=True):
    """Source of a trace; copied into the manifest of every run."""

    name: str
    source: Source = "file"
    sha256: str = ""
    origin: str = ""
    license: str = ""
    citation: str = ""
    tokenizer: str = ""
    has_arrivals: bool = True
    block_tokens: int = 512
    notes: tuple[str, ...] = ()

    def with_note(self, *notes: str) -> TraceMeta:
        return replace(self, notes=(*self.notes, *notes))


class PrefixBlocks(msgspec.Struct, frozen=True):
    """Prompt blocks of every request, flat: request i owns ids[offsets[i]:offsets[i + 1]].

    Equal ids mean equal tokens from the start of the prompt up to and including that block.
    """

    offsets: Int64
    ids: Int64

    def __post_init__(self) -> None:
        _freeze(self, "offsets", "ids")

    @classmethod
    def from_lists(cls, rows: Iterable[list[int]]) -> PrefixBlocks:
        rows = list(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.fromiter((block for row in rows for block in row), np.int64, int(offsets[-1]))
        return cls(offsets, ids)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Int64:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Int64) -> PrefixBlocks:
        return self._leading(self.offsets[:-1][rows], self.lengths()[rows])

    def limit(self, blocks: Int64) -> PrefixBlocks:
        """Limit row i to its leading blocks[i] blocks."""
        return self._leading(self.offsets[:-1], np.minimum(self.lengths(), blocks))

    def _leading(self, starts: Int64, lengths: Int64) -> PrefixBlocks:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Position inside the result, shifted to where each row starts in the source.
        where = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return PrefixBlocks(offsets, self.ids[where])

    def lengths(self) -> Int64:
        return np.diff(self.offsets)


class Trace(msgspec.Struct, frozen=True):
    """A table of requests, sorted by arrival; the first one arrives at 0 s."""

    arrival_s: Float64
    prompt_tokens: Int32
    output_tokens: Int32
    meta: TraceMeta
    prefix_blocks: PrefixBlocks | None = None
    session: Int64 | None = None

    def __post_init__(self) -> None:
        for column in (self.arrival_s, self.prompt_tokens, self.output_tokens, self.session):
            assert column is None or len(column) == len(self.arrival_s)
        _freeze(self, "arrival_s", "prompt_tokens", "output_tokens", "session")
        assert self.prefix_blocks is None or len(self.prefix_blocks) == len(self.arrival_s)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    def first(self, count: int) -> Trace:
        """Return so many requests from the beginning; all, if there are no more."""
        return self if count >= len(self) else self.take(np.arange(count))

    def take(self, rows: Int64) -> Trace:
        """Return these rows, in this order; the first of them arrives at 0 s."""
        arrival_s = self.arrival_s[rows]
        return replace(
            self,
            arrival_s=arrival_s - arrival_s[0] if len(arrival_s) else arrival_s,
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            prefix_blocks=None if self.prefix_blocks is None else self.prefix_blocks.take(rows),
            session=None if self.session is None else self.session[rows],
        )


def _freeze(table: Trace | PrefixBlocks, *names: str) -> None:
    """Replace the columns by read-only views, leaving the caller's arrays as they are."""
    for name in names:
        column = getattr(table, name)
        if column is not None:
            view = column.view()
            view.flags.writeable = False
            force_setattr(table, name, view)


def taken(rows: Int64, columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return these rows of arrays and blocks; where there is no such column there is none."""
    return tuple(None if column is None else column.take(rows) for column in columns)


def make_trace(
    arrival_s: Float64,
    prompt_tokens: Int32,
    output_tokens: Int32,
    meta: TraceMeta,
    *,
    prefix_blocks: PrefixBlocks | None = None,
    session: Int64 | None = None,
) -> Trace:
    """Return a checked Trace from columns that are already valid row by row.

    Sorts by arrival, moves the first arrival to 0 s and leaves out requests without output (they failed
    upstream; there is nothing to decode). What it did is written into the notes.
    """
    notes: list[str] = []
    columns = (arrival_s, prompt_tokens, output_tokens, prefix_blocks, session)
    keep = output_tokens > 0
    if not keep.all():
        dropped = int(len(keep) - keep.sum())
        notes.append(f"{dropped:,} of {len(keep):,} requests have no output tokens and were left out")
        columns = taken(np.flatnonzero(keep), columns)
    arrival_s = columns[0]
    if len(arrival_s) == 0:
        raise UserError(
            "trace-empty", f"{meta.origin or meta.name}: no requests in it; a trace needs at least one row"
        )
    backwards = int(np.count_nonzero(arrival_s[1:] < arrival_s[:-1]))
    if backwards:
        notes.append(f"timestamps run backwards {backwards:,} times; the requests were sorted by arrival")
        columns = taken(np.argsort(arrival_s, kind="stable"), columns)
    arrival_s, prompt_tokens, output_tokens, prefix_blocks, session = columns
    if arrival_s[0] != 0:
        arrival_s = arrival_s - arrival_s[0]
    if arrival_s[-1] > MAX_SPAN_S:
        raise UserError(
            "trace-too-long",
            f"{meta.origin or meta.name}: arrivals span {arrival_s[-1]:.3g} s, over a century; "
            "the timestamps are in another unit (try --time-unit ms, us or ns)",
        )
    return Trace(
        np.ascontiguousarray(arrival_s, np.float64),
        np.ascontiguousarray(prompt_tokens, np.int32),
        np.ascontiguousarray(output_tokens, np.int32),
        meta.with_note(*notes),
        prefix_blocks,
        None if session is None else np.ascontiguousarray(session, np.int64),
    )
