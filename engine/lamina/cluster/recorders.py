"""Recorders of work on devices: by a GPU stream's events, or by an emulated device's own clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from lamina.emulation import EmulatedDevice
from lamina.pipeline import Recorder
from lamina.pipeline.records import NO_ENDS, WorkRecords


class DeviceRecorder(Recorder):
    """A recorder of an emulated device's time, not the host's."""

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self._device = device

    def note(self, batch: int, iteration: int, cycle: int, slice_: int, start_ns: int, end_ns: int) -> None:
        """Record the device's work since the last call; the host's times do not matter."""
        del start_ns, end_ns
        super().note(batch, iteration, cycle, slice_, *self._device.took())

    def forget(self) -> None:
        self._device.ends.clear()
        super().forget()

    def messages(self) -> Iterator[WorkRecords]:
        first, *rest = super().messages()
        ends = np.array(self._device.ends, np.int64).reshape(-1, 2) if self._device.ends else NO_ENDS
        yield msgspec.structs.replace(first, ends=ends)
        yield from rest


class StreamRecorder(Recorder):
    """A recorder of CUDA events on a worker's stream, which are read later: work never waits for them.

    That these are the right times is not verified on hardware.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._noted: deque[tuple[tuple[int, int, int, int], Any, Any]] = deque()
        self._known: tuple[Any, int] | None = None  # a completed event, and when that was observed

    def now(self) -> Any:
        """Record an event at this point of the stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._place))
        return event

    def wait(self, moment: Any) -> None:
        moment.synchronize()
        # Anew each time: the two clocks drift, and a difference of events loses precision with its length.
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
