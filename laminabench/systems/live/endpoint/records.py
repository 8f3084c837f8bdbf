"""The records of a running replay, and their tables, merged from all clients.

A row for each request and one for each chunk: the replay is only observed from outside.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.runs.status import DONE, UNFINISHED
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Mode
from laminabench.systems.live.tables import Tables
from laminabench.traces.table import Trace

# Of a request: what it is until it is noted, and the type of its column.
_CALLS: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("due_s", "sent_s", "headers_s", "finished_s"), (float("nan"), np.float64)),
    "attempts": (0, np.int32),
    "status_code": (-1, np.int32),
    **dict.fromkeys(("prompt_counted", "completion_counted"), (-1, np.int64)),
    "status": (UNFINISHED, np.int8),
    "even": (False, np.bool_),
    "error": ("", object),
}


class Noted(NamedTuple):
    """The columns that one client process recorded."""

    rows: NDArray[np.int64]
    calls: Columns
    chunks: Columns


@dataclass(slots=True)
class Records:
    """Records of the requests `rows` of a trace; times are of the monotonic clock until `noted`."""

    rows: NDArray[np.int64]
    calls: dict[str, list[Any]] = field(init=False)
    # Of chunks: the place in `rows`, when, and how many tokens (0 while that is not known).
    chunk_place: array[int] = field(default_factory=lambda: array("q"))
    chunk_at_s: array[float] = field(default_factory=lambda: array("d"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("i"))
    begun: int = 0  # requests
    ended_places: array[int] = field(default_factory=lambda: array("q"))  # as they ended
    tokens: int = 0

    def __post_init__(self) -> None:
        self.calls = {name: [unknown] * len(self.rows) for name, (unknown, _) in _CALLS.items()}

    def note(self, place: int, **what: Any) -> None:
        for name, value in what.items():
            self.calls[name][place] = value

    def sent(self, place: int, at_s: float) -> None:
        """Note an attempt's time: the first one counts."""
        if np.isnan(self.calls["sent_s"][place]):
            self.calls["sent_s"][place] = at_s

    def chunk(self, place: int, at_s: float, tokens: int) -> None:
        self.chunk_place.append(place)
        self.chunk_at_s.append(at_s)
        self.chunk_tokens.append(tokens)
        self.tokens += tokens

    def noted(self, began_s: float) -> Noted:
        """Return everything as columns, in seconds since then."""
        calls = {name: np.array(self.calls[name], kind) for name, (_, kind) in _CALLS.items()}
        calls |= {name: column - began_s for name, column in calls.items() if name.endswith("_s")}
        tokens = np.array(self.chunk_tokens, np.int32)
        known = np.flatnonzero(tokens)  # a chunk whose tokens were assigned to others has none left
        chunks: Columns = {
            "request": self.rows[np.array(self.chunk_place, np.int64)[known]],
            "at_s": np.array(self.chunk_at_s, np.float64)[known] - began_s,
            "tokens": tokens[known],
        }
        return Noted(self.rows, calls, chunks)


def outcome_of(noted: Sequence[Noted], trace: Trace, mode: Mode) -> Outcome:
    """Return the outcome, with one row a request, whichever client had it."""
    calls: Columns = {}
    for name, (unknown, kind) in _CALLS.items():
        calls[name] = np.full(len(trace), unknown, kind)
        for part in noted:
            calls[name][part.rows] = part.calls[name]
    # In the order in which they came, to whichever client.
    chunks = {name: np.concatenate([part.chunks[name] for part in noted]) for name in noted[0].chunks}
    order = np.argsort(chunks["at_s"], kind="stable")
    chunks = {name: column[order] for name, column in chunks.items()}
    status, ended_s = calls.pop("status"), calls.pop("finished_s")
    times = [chunks["at_s"], ended_s, calls["headers_s"], calls["sent_s"]]
    end_s = max((float(np.nanmax(some)) for some in times if np.isfinite(some).any()), default=0.0)
    sent = calls["sent_s"][np.isfinite(calls["sent_s"])]
    return Tables(trace).outcome(
        requests=_requests(calls, chunks, status),
        end_s=end_s,
        # The server's queue is not visible; all that waited here has been sent then.
        queue_empty_s=float(sent.max()) if len(sent) and mode != "open" else end_s,
        chunks=chunks,
        calls=calls,
    )


def _requests(calls: Columns, chunks: Columns, status: NDArray[np.int8]) -> Columns:
    requests = len(status)
    first_s, last_s = np.full((2, requests), np.nan)
    # They are in the order of time, and of what is written twice the last stays.
    last_s[chunks["request"]] = chunks["at_s"]
    first_s[chunks["request"][::-1]] = chunks["at_s"][::-1]
    nothing = np.full(requests, -1, np.int64)
    return {
        "arrival_s": calls["due_s"].copy(),
        "admitted_s": np.full(requests, np.nan),
        "first_token_s": first_s,
        "finished_s": np.where(status == DONE, last_s, np.nan),
        "first_iteration": nothing,
        "last_iteration": nothing.copy(),
        "batch": nothing.astype(np.int32),
        "preemptions": np.zeros(requests, np.int32),
        "status": status,
    }
