"""The sequences that run, as columns, and what workers have to be sent when they come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline.batch_rows import (
    NO_LOGPROBS,
    NO_TRIPLES,
    NONE,
    BatchDelta,
    Ints,
    Joined,
    Tokens,
    staying,
)
from lamina.serve.sampling import Sampling

FIRST_ROWS = 64
FIRST_TOKENS = 64
NO_TOKEN = -1

Integer = TypeVar("Integer", np.int32, np.int64)


class SequenceTable:
    """A row for every sequence that has begun and not ended; `batches` lists those of each that decode now.

    A row is a sequence's own from `open` to `close`, so that nothing is moved when others leave.
    """

    def __init__(self, batches: int = 1) -> None:
        self.batches: list[NDArray[np.int64]] = [np.empty(0, np.int64) for _ in range(batches)]
        self.request = np.empty(0, np.int64)
        self.name = np.empty(0, np.int64)  # the sequence's, in the KV arena
        self.token = np.empty(0, np.int64)  # that its next iteration begins with
        self.position = np.empty(0, np.int64)  # of that token
        self.made = np.empty(0, np.int64)
        self.limit = np.empty(0, np.int64)
        self.searched = np.empty(0, np.bool_)  # a beam: chosen by its search
        self.temperature = np.empty(0, np.float32)
        self.top_k = np.empty(0, np.int64)
        self.most = np.empty(0, np.int64)  # likeliest tokens that are revealed, or NO_LOGPROBS
        self.top_p = np.empty(0, np.float32)
        self.seed = np.empty(0, np.uint64)
        self.stops = np.empty((0, 1), np.int64)
        self.tokens = np.empty((0, FIRST_TOKENS), np.int32)
        self._spare: list[int] = []

    def open(
        self, request: int, sampling: Sampling, seed: int, stops: tuple[int, ...], most: int | None
    ) -> int:
        """Return a row for a new sequence; where it begins is set by its join."""
        if not self._spare:
            self._add_rows()
        row = self._spare.pop()
        self.tokens = _widened(self.tokens, sampling.max_tokens)
        self.stops = _widened(self.stops, len(stops), fill=NO_TOKEN)
        self.request[row] = request
        self.made[row] = 0
        self.limit[row] = sampling.max_tokens
        self.searched[row] = sampling.beams > 1
        self.temperature[row] = sampling.temperature
        self.top_k[row] = sampling.top_k
        self.most[row] = NO_LOGPROBS if most is None else most
        self.top_p[row] = sampling.top_p
        self.seed[row] = seed
        self.stops[row] = NO_TOKEN
        self.stops[row, : len(stops)] = stops
        return row

    def made_before(self, row: int, tokens: Sequence[int]) -> None:
        self.made[row] = len(tokens)
        self.tokens[row, : len(tokens)] = tokens

    def join(self, batch: int, rows: list[int]) -> None:
        self.batches[batch] = np.concatenate([self.batches[batch], np.array(rows, np.int64)])

    def leave(self, batch: int, rows: list[int]) -> None:
        here = self.batches[batch]
        self.batches[batch] = here[staying(here, np.array(rows, np.int64))]

    def close(self, rows: list[int]) -> None:
        """Free the rows of sequences that have ended."""
        self._spare.extend(rows)

    def record(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Append the rows' chosen tokens; return which sequences end by them."""
        made = self.made[rows]
        self.tokens[rows, made] = tokens
        self.made[rows] = made + 1
        self.token[rows] = tokens
        self.position[rows] += 1
        ended: NDArray[np.bool_] = (self.stops[rows] == tokens[:, None]).any(axis=1)
        ended |= made + 1 >= self.limit[rows]
        return ended

    def tokens_of(self, row: int, begin: int = 0) -> list[int]:
        made: list[int] = self.tokens[row, begin : self.made[row]].tolist()
        return made

    def _columns(self) -> list[str]:
        return [name for name, value in vars(self).items() if name[0] != "_" and name != "batches"]

    def _add_rows(self) -> None:
        rows = len(self.request)
        more = max(FIRST_ROWS, rows)
        for name in self._columns():
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]))
        self._spare.extend(range(rows + more - 1, rows - 1, -1))


def _widened(table: NDArray[Integer], needed: int, fill: int = 0) -> NDArray[Integer]:
    """Return the table with at least `needed` columns, at least twice as many as before when it has to
    grow.
    """
    rows, have = table.shape
    if needed <= have:
        return table
    more = np.full((rows, max(needed, 2 * have) - have), fill, table.dtype)
    return np.concatenate([table, more], axis=1)


@dataclass
class DeltaBuilder:
    """A BatchDelta in the making: lists that grow, made into columns once."""

    forks: list[tuple[int, int, int]] = field(default_factory=list)
    renamed: list[tuple[int, int, int]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    joining: list[tuple[int, int, int, int]] = field(default_factory=list)  # row, parent, shared tokens, pool
    prompts: dict[int, Tokens] = field(default_factory=dict)

    def leave(self, rows: Ints) -> None:
        self.left += rows.tolist()
        self.released += rows.tolist()

    @property
    def empty(self) -> bool:
        """Whether there is nothing that workers have to know."""
        return not (self.left or self.released or self.joining or self.forks)

    def build(self, table: SequenceTable) -> BatchDelta:
        return BatchDelta(
            forks=_columns(self.forks, NO_TRIPLES),
            renamed=_columns(self.renamed, NO_TRIPLES),
            left=_columns(self.left, NONE),
            released=_columns(self.released, NONE),
            joined=self._joined(table) if self.joining else Joined(),
            prompts=self.prompts,
        )

    def _joined(self, table: SequenceTable) -> Joined:
        rows, parents, shared, pools = np.array(self.joining, np.int64).T
        names = Joined.__struct_fields__
        columns = {name: getattr(table, name)[rows] for name in names if hasattr(table, name)}
        return Joined(parent=parents, shared=shared, pool=pools, **columns)


def _columns(rows: Sequence[object], empty: Ints) -> Ints:
    return np.array(rows, np.int64) if rows else empty
