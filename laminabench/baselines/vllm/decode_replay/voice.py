"""What the runner says: lines of JSON, several events each, so that telling costs next to nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TextIO

from .watch import Step

# Nobody waits longer than this to hear what happened.
EVERY_S = 0.25


class Voice:
    """Events are kept until it is time, in the order they happened in."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._events: list[list[Any]] = []
        self._said_s = now()

    def say(self, **line: Any) -> None:
        """A line at once, after what is waiting."""
        self.flush()
        self._write(line)

    def arrived(self, row: int, at_s: float, why_not: str | None) -> None:
        """A request was submitted, or why it can never be served."""
        self._events.append(["a", row, at_s, why_not])

    def stepped(self, start_s: float, end_s: float, step: Step) -> None:
        """A step was made."""
        self._events.append(["s", start_s, end_s, *step])

    def flush_if_due(self) -> None:
        """What is waiting, if it has waited long enough; also nothing, as a sign of life."""
        if self._now() - self._said_s >= EVERY_S:
            self._write({"events": self._events})
            self._events = []

    def flush(self) -> None:
        if self._events:
            self._write({"events": self._events})
            self._events = []

    def _write(self, line: dict[str, Any]) -> None:
        self._said_s = self._now()
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._stream.flush()
