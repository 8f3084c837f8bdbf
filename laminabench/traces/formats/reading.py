"""What every reader gets and gives: a file with the user's wishes in, checked columns out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from laminabench.errors import UserError
from laminabench.traces.arrow import mask_of, numpy_of
from laminabench.traces.formats.layout import Layout
from laminabench.traces.formats.source import Source
from laminabench.traces.formats.wording import HINT, Doubtful
from laminabench.traces.table import MAX_TOKENS, Float64, Int32, Int64, PrefixBlocks, TraceMeta


class Reading(msgspec.Struct, frozen=True):
    """One file to read, and how the user wants it read."""

    source: Source
    layout: Layout
    columns: Mapping[str, str]
    time_unit: str
    skip_bad: bool
    tokenizer: Path | None


class Requests(msgspec.Struct, frozen=True):
    """The columns of a file, valid row by row, in the order of the file."""

    arrival_s: Float64 | None
    prompt_tokens: Int32
    output_tokens: Int32
    session: Int64 | None = None
    blocks: PrefixBlocks | None = None
    notes: tuple[str, ...] = ()
    # What a file of our own remembers of its origin.
    meta: TraceMeta | None = None


class BadRows:
    """Stops at the first bad row, or counts them when the user said so."""

    def __init__(self, label: str, skip: bool) -> None:
        self.label = label
        self.skip = skip
        self.count = 0
        self.first = ""

    def add(self, where: str, problem: str, count: int = 1) -> None:
        sentence = f"{where}: {problem}"
        if not self.skip:
            raise UserError("trace-bad-row", sentence + HINT)
        self.first = self.first or sentence
        self.count += count

    def notes(self, good: int) -> tuple[str, ...]:
        if good == 0 and self.count:
            raise UserError(
                "trace-all-rows-bad", f"all rows are bad ({self.count:,}), the first at {self.first}"
            )
        if good == 0:
            raise UserError("trace-empty", f"{self.label}: no requests in it; a trace needs at least one row")
        if self.count == 0:
            return ()
        return (f"{self.count:,} bad row{'s' * (self.count > 1)} skipped, the first at {self.first}",)


def good_tokens(values: Float64, least: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where a column of counts holds whole numbers from `least` to MAX_TOKENS (NaN compares false)."""
    good: np.ndarray[tuple[int], np.dtype[np.bool_]] = values >= least
    good &= values <= MAX_TOKENS
    good &= values == np.floor(values)
    return good


def all_tokens(column: pa.ChunkedArray, least: int) -> Int32:
    """A float64 column of counts; Doubtful unless every one is good."""
    tokens = np.empty(len(column), np.int32)
    start = 0
    for chunk in column.chunks:
        values = numpy_of(no_nulls(chunk))
        if not good_tokens(values, least).all():
            raise Doubtful("a count that is none")
        tokens[start : start + len(values)] = values
        start += len(values)
    return tokens


def no_nulls(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if column.null_count:
        raise Doubtful("a value is missing")
    return column


def session_ids(texts: pa.ChunkedArray) -> Int64:
    """Whole numbers stay what they are; other names are numbered; a request without one is alone."""
    import pyarrow.compute as pc

    alone = mask_of(pc.fill_null(pc.equal(texts, ""), True))
    named = texts.filter(pa.array(~alone))
    try:
        numbers = numpy_of(named.cast(pa.int64()))
        if len(numbers) and numbers.max() > 1 << 62:
            raise pa.ArrowInvalid("no room above it")
    except pa.ArrowInvalid:
        numbers = numpy_of(named.combine_chunks().dictionary_encode().indices)
    ids = np.empty(len(texts), np.int64)
    ids[~alone] = numbers
    ids[alone] = np.arange(np.count_nonzero(alone)) + (numbers.max() + 1 if len(numbers) else 0)
    return ids


def block_lists(column: pa.ChunkedArray) -> PrefixBlocks:
    """A list<int64> column as flat blocks; Doubtful if a list is missing or an id is."""
    lengths, ids = [], []
    for chunk in no_nulls(column).chunks:
        lengths.append(np.diff(numpy_of(chunk.offsets)))
        ids.append(numpy_of(no_nulls(chunk.flatten())))
        if len(ids[-1]) and ids[-1].min() < 0:
            raise Doubtful("an id below zero")
    offsets = np.zeros(len(column) + 1, np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return PrefixBlocks(offsets, np.concatenate(ids) if ids else np.empty(0, np.int64))
