"""Server-sent events out of the pieces that a connection delivers."""

from __future__ import annotations

# A server that never ends an event shall not fill the memory.
MOST_BYTES = 16 << 20


class EventsError(Exception):
    """The pieces are no stream of events."""


class Events:
    """The data of each event, once its last byte is here; other fields and comments are left out."""

    __slots__ = ("_data", "_held", "_rest")

    def __init__(self) -> None:
        self._rest = b""  # of a line that is not whole
        self._data: list[bytes] = []  # lines of an event that is not whole
        self._held = 0  # their bytes

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes."""
        # Servers write an event at once, and so it mostly comes: this is the way of nearly every token.
        if (
            not self._rest
            and not self._data
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and b"\r" not in piece
        ):
            return [piece[6:-2]]
        return self._lines(piece)

    def _lines(self, piece: bytes) -> list[bytes]:
        text = self._rest + piece
        held_back = b""
        if b"\r" in text:
            if text.endswith(b"\r"):
                # It may be the first half of a line's end.
                text, held_back = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._rest = lines.pop() + held_back
        if len(self._rest) + self._held > MOST_BYTES:
            raise EventsError(f"an event of more than {MOST_BYTES >> 20} MiB")
        events = []
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data, self._held = [], 0
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._held += len(value)
