"""Requests ready to be sent before they are due: making one takes as long as several tokens' arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

MOST_BYTES = 64 << 20


class Bodies:
    """The requests of these rows, to be taken in this order, made ahead up to so many bytes."""

    def __init__(
        self, rows: Sequence[int], make: Callable[[int], bytes], most_bytes: int = MOST_BYTES
    ) -> None:
        self._rows, self._make, self._most = rows, make, most_bytes
        self._ready: deque[bytes] = deque()
        self._next = 0  # place in rows of the first that is not made
        self._bytes = 0

    def prepare(self) -> None:
        """As many as may be, before the clock starts."""
        while self._next < len(self._rows) and self._bytes < self._most:
            self.make_one()

    def make_one(self) -> None:
        if self._next < len(self._rows) and self._bytes < self._most:
            body = self._make(self._rows[self._next])
            self._next += 1
            self._bytes += len(body)
            self._ready.append(body)

    def take(self) -> bytes:
        """The next row's."""
        if not self._ready:
            self._next += 1
            return self._make(self._rows[self._next - 1])
        body = self._ready.popleft()
        self._bytes -= len(body)
        return body
