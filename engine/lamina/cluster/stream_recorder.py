"""What a worker has a GPU do, and when it was done: events on its stream, read once they have come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from lamina.pipeline import Recorder
from lamina.pipeline.records import WorkRecords


class StreamRecorder(Recorder):
    """Moments are events, and what lies between two of them is noted later: nobody waits for that.

    That these are the right times is not verified on hardware.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._noted: deque[tuple[tuple[int, int, int, int], Any, Any]] = deque()
        self._known: tuple[Any, int] | None = None  # an event that has come, and when that was seen

    def now(self) -> Any:
        """When the stream has come so far."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._place))
        return event

    def wait(self, moment: Any) -> None:
        moment.synchronize()
        # Anew each time: the two clocks run apart, and a difference of events is the less exact the longer.
        self._known = moment, time.monotonic_ns()

    def note(self, batch: int, iteration: int, cycle: int, slice_: int, started: Any, ended: Any) -> None:
        self._noted.append(((batch, iteration, cycle, slice_), started, ended))
        while self._noted and self._noted[0][2].query():
            self._settle()

    def _settle(self) -> None:
        work, started, ended = self._noted.popleft()
        if self._known is None:
            self._known = ended, time.monotonic_ns()
        known, known_ns = self._known
        moments = [known_ns + int(known.elapsed_time(event) * 1e6) for event in (started, ended)]
        super().note(*work, *moments)

    def forget(self) -> None:
        self._noted.clear()
        super().forget()

    def messages(self) -> Iterator[WorkRecords]:
        while self._noted:
            self._noted[0][2].synchronize()
            self._settle()
        return super().messages()
