"""What is noted while a replay runs: a row for each request and one for each chunk, in plain columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laminabench.runs.status import UNFINISHED
from laminabench.sim.outcome import Columns

_TIMES = ("due_s", "sent_s", "headers_s", "finished_s")
_COUNTS = ("attempts", "status_code", "prompt_counted", "completion_counted", "status")


@dataclass(slots=True)
class Records:
    """Of the requests `rows` of a trace; times are of the monotonic clock until they are `noted`."""

    rows: NDArray[np.int64]
    due_s: list[float] = field(init=False)
    sent_s: list[float] = field(init=False)
    headers_s: list[float] = field(init=False)
    finished_s: list[float] = field(init=False)
    attempts: list[int] = field(init=False)
    status_code: list[int] = field(init=False)
    prompt_counted: list[int] = field(init=False)
    completion_counted: list[int] = field(init=False)
    status: list[int] = field(init=False)
    even: list[bool] = field(init=False)
    error: list[str] = field(init=False)
    # Of chunks: the place in `rows`, when, and how many tokens (0 while that is not known).
    chunk_place: array[int] = field(default_factory=lambda: array("q"))
    chunk_at_s: array[float] = field(default_factory=lambda: array("d"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("i"))
    ended: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        count = len(self.rows)
        for name in _TIMES:
            setattr(self, name, [float("nan")] * count)
        for name in _COUNTS:
            setattr(self, name, [-1] * count)
        self.attempts = [0] * count
        self.status = [UNFINISHED] * count
        self.even = [False] * count
        self.error = [""] * count

    def chunk(self, place: int, at_s: float, tokens: int) -> None:
        self.chunk_place.append(place)
        self.chunk_at_s.append(at_s)
        self.chunk_tokens.append(tokens)
        self.tokens += tokens

    def noted(self, began_s: float) -> Noted:
        """All of it as columns, in seconds since then."""
        calls: Columns = {name: np.array(getattr(self, name), np.float64) - began_s for name in _TIMES}
        calls |= {name: np.array(getattr(self, name), np.int64) for name in _COUNTS}
        calls["even"] = np.array(self.even, np.bool_)
        calls["error"] = np.array(self.error, object)
        tokens = np.array(self.chunk_tokens, np.int32)
        known = np.flatnonzero(tokens)  # a chunk whose tokens were dealt to others has none left
        chunks: Columns = {
            "request": self.rows[np.array(self.chunk_place, np.int64)[known]],
            "at_s": np.array(self.chunk_at_s, np.float64)[known] - began_s,
            "tokens": tokens[known],
        }
        return Noted(self.rows, calls, chunks)


@dataclass(frozen=True, slots=True)
class Noted:
    """What one client process noted of its requests."""

    rows: NDArray[np.int64]
    calls: Columns
    chunks: Columns
