"""A server that costs almost nothing: prepared answers in OpenAI's format, streamed at a set pace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from typing import cast

import msgspec
import uvloop

# Streams are served in groups, one a tick, so that their tokens are not all due at the same moment.
TICK_S = 0.001
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def pieces(chunks: int, tokens_a_chunk: int) -> list[bytes]:
    """Return the bytes to write for each chunk; the last one also ends the answer."""
    made = []
    for number in range(1, chunks + 1):
        tokens = number * tokens_a_chunk
        choice = {"index": 0, "text": " word" * tokens_a_chunk, "logprobs": None, "finish_reason": None}
        usage = {"prompt_tokens": 16, "total_tokens": 16 + tokens, "completion_tokens": tokens}
        head = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1700000000}
        event = msgspec.json.encode({**head, "model": "mock", "choices": [choice], "usage": usage})
        made.append(_chunked(b"data: " + event + b"\n\n"))
    made[0] = _HEAD + made[0]
    made[-1] += _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return made


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Turns:
    """Streams under way, in as many groups as there are ticks between two chunks of a stream."""

    def __init__(self, chunks: list[bytes], gap_s: float) -> None:
        self._pieces = chunks
        self._groups: deque[list[Mock]] = deque([] for _ in range(max(1, round(gap_s / TICK_S))))
        self.missed_s = 0.0  # how late the latest tick was

    def add(self, stream: Mock) -> None:
        stream.at = 0
        self._groups[-1].append(stream)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += TICK_S
            self._tick()
            late = loop.time() - due
            self.missed_s = max(self.missed_s, late)
            await asyncio.sleep(max(0.0, -late))

    def _tick(self) -> None:
        group, last = self._groups[0], len(self._pieces)
        self._groups.rotate(-1)
        going = []
        for stream in group:
            stream.write(self._pieces[stream.at])
            stream.at += 1
            if stream.at < last and stream.open:
                going.append(stream)
        # In place: a stream that was added meanwhile is in the same list.
        group[:] = going


class Mock(asyncio.Protocol):
    """One connection: a request is a head and a body of the stated length, whose content is ignored."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._received = b""
        self.at = 0
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._number: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, _: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self._received = b""
            models = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
            fields = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self._transport.write(fields % len(models) + models)
            return
        _, _, length = head.lower().partition(b"content-length:")
        if len(body) >= int(length.split(b"\r\n", 1)[0]):
            self._received = b""
            self._turns.add(self)

    def write(self, piece: bytes) -> None:
        """Write at once, bypassing the loop's own queue: that is half the cost of a token."""
        written = 0
        with contextlib.suppress(BlockingIOError, ConnectionError):
            written = os.write(self._number, piece)
        if written < len(piece) and self.open:
            self._transport.write(piece[written:])


async def serve(turns: Turns) -> None:
    """Serve on a free port, which is printed, until stdin ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Mock(turns), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    running = asyncio.ensure_future(turns.run())
    await loop.run_in_executor(None, sys.stdin.read)
    running.cancel()
    server.close()


if __name__ == "__main__":
    number, tokens, gap = sys.argv[1:]
    made = pieces(int(number), int(tokens))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Turns(made, float(gap))))
