"""A time by which several steps must be done together."""

from __future__ import annotations

import time

# Thirty years: `inf` is asked for, and no clock overflows.
LONGEST_S = 1e9
# What the kernel counts in milliseconds, in 31 bits.
_LONGEST_WAIT_S = 2e6
# A socket takes 0 for: do not wait, say EAGAIN.
_SHORTEST_WAIT_S = 1e-6


def seconds(timeout_s: float) -> float:
    """A time that a caller has asked for, as clocks can count it; ValueError if it is none."""
    if not timeout_s >= 0:
        raise ValueError(f"a timeout of {timeout_s}: give a number of seconds, 0 or more")
    return min(timeout_s, LONGEST_S)


class Deadline:
    """`timeout_s` from now, handed through the steps of one call."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + seconds(timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def wait_s(self) -> float:
        """The same for a system call that waits: never zero, never more than it can count."""
        return min(max(self.left_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)

    def sooner(self, timeout_s: float) -> Deadline:
        """This deadline, or one `timeout_s` from now if that comes first."""
        return Deadline(min(self.left_s, timeout_s))
