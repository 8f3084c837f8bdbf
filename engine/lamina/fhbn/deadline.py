"""A time by which several steps must be done together."""

from __future__ import annotations

import time


class Deadline:
    """`timeout_s` from now, handed through the steps of one call."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def sooner(self, timeout_s: float) -> Deadline:
        """This deadline, or one `timeout_s` from now if that comes first."""
        return Deadline(min(self.left_s, timeout_s))
