"""Many short requests whose clients leave at any moment: every slot, task, file and byte of KV comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# `make clients` lets all 10,000 leave; these are for every day.
REQUESTS = int(os.environ.get("LAMINABENCH_DISCONNECTS", "800"))
AT_ONCE = 48
LONG = 300  # tokens: seconds, unless cancelled
LEAVING = ("in the header", "in the body", "at once", "half", "later", "in the stream", "never")
# What a Python process may grow by, without keeping anything of anybody.
GROWTH_BYTES = 24_000_000
LENGTH = re.compile(rb"content-length: (\d+)")


def requested(post: Callable[..., bytes], draw: random.Random, *, waits: bool) -> bytes:
    """A small request of any kind; of clients that leave early, now and then a long one."""
    body: dict[str, Any] = {"max_tokens": draw.randint(1, 12), "stream": draw.random() < 0.7}
    if not waits and draw.random() < 0.3:
        body |= {"max_tokens": LONG, "ignore_eos": True}
    path = "/v1/completions"
    kind = draw.randrange(4)
    if kind == 0:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "hello"}]
    elif kind == 1:
        body["prompt"] = [[draw.randrange(256)] * draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
    else:
        body["prompt"] = "a" * draw.randint(1, 30)
    if draw.random() < 0.3:
        body["n"] = draw.randint(2, 4)
    if draw.random() < 0.2:
        body["logprobs"], body["stop"] = (True, ["b"]) if kind == 0 else (2, ["b"])
    return post(body, path)


class Client:
    """Sends one request and leaves; the same draws every time."""

    def __init__(self, target: Any, post: Callable[..., bytes], number: int) -> None:
        self._address, self._post = (target.host, target.port), post
        self._draw = random.Random(number)
        self.leaves = LEAVING[number % len(LEAVING)]

    async def run(self) -> int:
        """The status it was told, or 0 if it did not wait for one."""
        reader, writer = await asyncio.open_connection(*self._address)
        if self._draw.random() < 0.5:
            # Leave with a reset, as a process that is killed does.
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        try:
            return await self._talk(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        message = requested(self._post, self._draw, waits=self.leaves == "never")
        body = message.index(b"\r\n\r\n") + 4
        parts = {
            "in the header": self._draw.randrange(body),
            "in the body": self._draw.randrange(body, len(message)),
        }
        writer.write(message[: parts.get(self.leaves, len(message))])
        await writer.drain()
        if self.leaves == "half":
            writer.write_eof()
        elif self.leaves == "later":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), self._draw.random() / 20)
        elif self.leaves in ("in the stream", "never"):
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            if self.leaves == "in the stream":
                await reader.read(self._draw.randrange(2000))
            elif length:
                await reader.readexactly(int(length[1]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            return int(head.split()[1])
        return 0


async def crowd(target: Any, post: Callable[..., bytes], numbers: range) -> Counter[tuple[str, int]]:
    """Run so many at once; return how often each way of leaving got which status."""
    reported: Counter[tuple[str, int]] = Counter()
    waiting = iter(numbers)

    async def slot() -> None:
        for number in waiting:
            client = Client(target, post, number)
            reported[client.leaves, await client.run()] += 1

    async with asyncio.timeout(600), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(slot())
    return reported


def stored(target: Any) -> tuple[int, int]:
    """Open files of this process, and tasks of the server."""

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    running = asyncio.run_coroutine_threadsafe(tasks(), target.loop).result(60)
    return len(list(Path("/proc/self/fd").iterdir())), running


@pytest.mark.long
def test_departed_clients_leave_nothing_behind(
    target: Any, wire: Any, resident_bytes: Callable[[], int]
) -> None:
    warm = REQUESTS // 4
    # What is made once, and kept, is made by the first of them.
    asyncio.run(crowd(target, wire.posted, range(warm)))
    target.require_sound()
    files, tasks = stored(target)
    memory = resident_bytes()
    reported = asyncio.run(crowd(target, wire.posted, range(warm, REQUESTS)))
    target.require_sound()
    until_settled(target, files, tasks)
    assert resident_bytes() - memory < GROWTH_BYTES
    assert {leaves for leaves, _ in reported} == set(LEAVING)
    # Waiting clients are answered, and no client gets the error of another one.
    assert {status for leaves, status in reported if leaves in ("never", "in the stream")} == {200}


def until_settled(target: Any, files: int, tasks: int) -> None:
    """The server notices that a client is gone when it next looks at his connection; give it a while."""
    served_once = 0
    while (now := stored(target)) > (files, tasks) or now[1] > tasks:
        assert served_once < 500, f"{now} files and tasks, {files, tasks} before"
        target.require_sound()
        served_once += 1


def test_every_kind_of_end_is_counted(target: Any, wire: Any) -> None:
    """Counts of requests in /metrics add up: each ends once."""
    assert target.settled()
    before = counted(target)
    asyncio.run(crowd(target, wire.posted, range(10**6, 10**6 + 10 * len(LEAVING))))
    # All earlier requests have been read when this one is answered.
    target.require_sound()
    assert target.settled()
    after = counted(target)
    ended = sum(after[name] - before[name] for name in after if name.startswith("lamina_requests_total"))
    begun = after["begun"] - before["begun"]
    assert ended == begun > 0
    assert after["lamina_requests_totalcancelled"] > before["lamina_requests_totalcancelled"]
    assert after["lamina_kv_tokens_used"] == after["lamina_requests_running"] == 0


def counted(target: Any) -> Counter[str]:
    """Counters and gauges of the server, and how many requests its engine has taken in."""
    from prometheus_client.parser import text_string_to_metric_families

    text = target.send_raw(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").body.decode()
    result: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            result[sample.name + "".join(sample.labels.values())] += int(sample.value)
    result["begun"] = target.engine._numbers
    return result
