"""The events of a live replay: the content of its journal, and all a resumption knows.

A running replay records these events in its log and keeps no other record of what was, so one read back
from a journal is the reported one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from laminabench.runs.journal import Journal
from laminabench.systems.live.tables import Iteration, Tables
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.live_progress import FaultEvent


class Begun(NamedTuple):
    """The engine's choices where flags left them open."""

    batches: int
    pipelining: str
    kv_tokens: int


class Arrived(NamedTuple):
    """The next row of the trace was submitted; or why it can never be served."""

    row: int
    at_s: float
    refused: str | None = None


class Resumed(NamedTuple):
    """The end of the engine before this, with all that it had not reported."""

    at_s: float


Event = Begun | Arrived | Iteration | FaultEvent | Resumed
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Begun, Arrived, Iteration, FaultEvent, Resumed)
}


def packed(event: Event) -> list[Any]:
    """Convert to a journal's record: the event's kind and its fields."""
    values = [msgspec.structs.asdict(event)] if isinstance(event, FaultEvent) else event
    return [type(event).__name__, *values]


def unpacked(record: Sequence[Any]) -> Event:
    """Parse a journal's record; ValueError, TypeError, KeyError or ValidationError if it is no event."""
    name, *values = record
    kind = _KINDS[name]
    event: Event = msgspec.convert(values[0] if kind is FaultEvent else values, kind)
    return event


@dataclass(slots=True)
class ReplayLog:
    """The log of everything so far."""

    trace: Trace
    tables: Tables = field(init=False)
    begun: Begun | None = None
    next: int = 0  # the first row that has not been submitted
    at_s: float = 0.0  # when the last thing happened
    why_refused: str | None = None  # the first time
    refused: int = 0
    strikes: list[FaultEvent] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    peak_kv_tokens: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)  # by row, where prompts are computed
    # Iterations of each batch before the last resumption: the engine counts from 0 again.
    before: dict[int, int] = field(default_factory=dict)
    _open: dict[int, None] = field(default_factory=dict)  # rows in the system, as they were submitted
    _cut_off: set[int] = field(default_factory=set)  # rows that ran when it was interrupted, and wait since

    def __post_init__(self) -> None:
        self.tables = Tables(self.trace)

    def apply(self, event: Event) -> None:
        """Take in what happened next."""
        if isinstance(event, Begun):
            self.begun = event
        elif isinstance(event, Arrived):
            self._arrived(event)
        elif isinstance(event, Iteration):
            self._ran(event)
        elif isinstance(event, FaultEvent):
            (self.strikes if event.struck else self.faults).append(event)
            self.at_s = max(self.at_s, event.at_s if event.struck else event.recovered_s)
        else:
            self.resumed_s.append(event.at_s)
            self._cut_off |= set(self.tables.running)
            self.tables.interrupted()
            self.before = dict(self.tables.iterations_of)

    def restore(self, records: Sequence[Any]) -> None:
        """Apply a journal's events; a UserError if they are impossible."""
        try:
            for record in records:
                self.apply(unpacked(record))
        except (
            *(AssertionError, LookupError, OverflowError, TypeError, ValueError),
            msgspec.ValidationError,
        ) as error:
            raise UserError(
                "journal-damaged",
                f"the journal has impossible contents ({type(error).__name__}: {error}); remove it and "
                "replay again",
            ) from error

    def to_resume_with(self) -> list[int]:
        """Return the rows to submit again, in order: those that ran go first, whatever the policy."""
        return [*self.cut_off(), *(row for row in self._open if row not in self._cut_off)]

    def cut_off(self) -> list[int]:
        """Return the rows that ran when it was interrupted."""
        return [row for row in self._open if row in self._cut_off]

    def made(self, row: int) -> list[int]:
        """Return the tokens that a row has made; where they have no meaning, as many zeros."""
        count = self.tables.made(row)
        made = self.tokens.get(row)
        if made is None:
            return [0] * count
        assert len(made) == count
        return made

    def _arrived(self, event: Arrived) -> None:
        self.next = event.row + 1
        self.at_s = max(self.at_s, event.at_s)
        self.tables.arrived(event.row, event.at_s, waits=event.refused is None)
        if event.refused is None:
            self._open[event.row] = None
        self.why_refused = self.why_refused or event.refused
        self.refused += event.refused is not None

    def _ran(self, event: Iteration) -> None:
        for row, token in zip(event.token_rows, event.tokens, strict=True):
            self.tokens.setdefault(row, []).append(token)
        self.tables.add(event)
        self.at_s = max(self.at_s, event.end_s)
        self.peak_kv_tokens = max(self.peak_kv_tokens, event.peak_kv_tokens)
        self._cut_off.difference_update(event.joined)
        for row in event.ended:
            del self._open[row]


def record(event: Event, log: ReplayLog, journal: Journal | None) -> None:
    """Record an event in the log, and in the journal with its next flush."""
    log.apply(event)
    if journal:
        journal.append(packed(event))
