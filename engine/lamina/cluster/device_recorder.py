"""What a device that is not here would have done, and when: by its time, and not the host's."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from lamina.emulation import EmulatedDevice
from lamina.pipeline import Recorder
from lamina.pipeline.records import NO_ENDS, WorkRecords


class DeviceRecorder(Recorder):
    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self._device = device

    def note(self, batch: int, iteration: int, cycle: int, slice_: int, start_ns: int, end_ns: int) -> None:
        """All that it was given since the last one; when the host began and ended is no matter."""
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
