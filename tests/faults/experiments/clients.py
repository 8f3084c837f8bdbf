"""Clients that leave at any moment, send trailers, pipeline, read slowly or half-close; and mutated requests.

No client may leave anything behind, and well-behaved clients alongside them get the right tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.mutations import mutated
from experiments.processes import eventually
from experiments.serving import Server, growth, serving
from experiments.stream_client import (
    Client,
    SeededRequest,
    WrongAnswerError,
    answers_of,
    check_tokens,
    seeded_requests,
)
from experiments.tally import Tally
from laminabench.systems.live.endpoint.wire import more_files

AT_ONCE = 256
REQUESTS, REQUESTS_SEED, LONGEST_ANSWER = 16, 31, 6
SERVER = (
    *("--deployment", "1xcpu+1xcpu", "--kv-tokens", "8000", "--max-model-len", "128"),
    *("--max-num-seqs", "64", "--max-waiting", "4096"),
)
ANSWER_S = 120.0
# A mutated request may be an incomplete one: the server waits for the rest, the test does not.
PATIENCE_S = 0.2
_REST_S = 30.0
STAYS = ("front_end_descriptors", "front_end_threads")
# The server's own threads, which start when they are first needed.
READERS = 2
MOST_GROWTH_MB = 64.0
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
TRAILERS = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: %b\r\n\r\n"
FOREIGN = b"GET /v1/models HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n"
NOTHING = b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Visit:
    """One client, determined by its seed."""

    port: int
    expected: Mapping[SeededRequest, list[int]]
    rng: random.Random

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def request(self) -> bytes:
        return self.rng.choice(list(self.expected)).head_and_body

    async def leaves(self) -> None:
        """Disconnect with a part of a request sent, or all of it, or a part of the answer read."""
        reader, writer = await self.open()
        sent = self.request()
        writer.write(sent[: self.rng.choice((0, self.rng.randrange(len(sent)), len(sent), len(sent)))])
        if self.rng.random() < 0.3:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.random() / 20):
                    await reader.read(self.rng.randrange(1, 2000))
        if self.rng.random() < 0.5:  # reset, and not closed
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async def half_closes(self) -> None:
        reader, writer = await self.open()
        writer.write(self.request())
        writer.write_eof()
        await reader.read()
        writer.close()

    async def reads_slowly(self) -> None:
        reader, writer = await self.open()
        writer.write(self.request())
        for _ in range(self.rng.randrange(1, 8)):
            await reader.read(self.rng.randrange(1, 40))
            await asyncio.sleep(0.002)
        writer.close()

    async def pipelines(self) -> None:
        """Send a request for tokens with many behind it; all are answered, or disconnect before."""
        reader, writer = await self.open()
        count = self.rng.randrange(1, 60)
        writer.write(self.request() + GET * count)
        if self.rng.random() < 0.5:
            writer.close()
            return
        statuses: list[int] = []
        rest = b""
        while len(statuses) <= count:
            more = await reader.read(65_536)
            if not more:
                raise WrongAnswerError("lost", f"{len(statuses)} of {count + 1} pipelined answers")
            rest += more
            statuses += map(int, STATUS.findall(rest))
            rest = rest[-12:] if STATUS.search(rest) is None else rest[[*STATUS.finditer(rest)][-1].end() :]
        writer.close()
        _require(statuses, {200})

    async def sends_trailers(self) -> None:
        size = self.rng.choice((1, 100, 60_000, 300_000))
        await self._refused(TRAILERS % (b"y" * size), {400, 431})

    async def is_of_elsewhere(self) -> None:
        await self._refused(FOREIGN, {421})

    async def goes_on_sending(self) -> None:
        await self._refused(NOTHING + b"z" * self.rng.randrange(4000), {404})

    async def _refused(self, sent: bytes, statuses: set[int]) -> None:
        reader, writer = await self.open()
        try:
            writer.write(sent)
            _require([int(one) for one in STATUS.findall(await reader.read())], statuses)
        finally:
            writer.close()

    async def sends_request(self) -> None:
        request = self.rng.choice(list(self.expected))
        client = Client(self.port)
        check_tokens(request, await client.answer(request), self.expected[request])
        await client.close()

    async def mutates(self) -> None:
        """Send a malformed request: any answer except a server error is fine, or none yet."""
        reader, writer = await self.open()
        received = b""
        sent, complete = mutated(self.request(), self.rng)
        try:
            writer.write(sent)
            async with asyncio.timeout(None if complete else PATIENCE_S):
                received = await reader.read(65_536)
        except TimeoutError:
            return
        finally:
            writer.close()
        status = STATUS.match(received)
        if (complete or received) and (status is None or status[1] == b"500"):
            raise WrongAnswerError("crashed", f"{sent[-100:]!r}: {received[-200:]!r}")


def _require(statuses: Sequence[int], expected: set[int]) -> None:
    if not statuses or not set(statuses) <= expected:
        raise WrongAnswerError("wrong", f"{list(statuses)} in place of {sorted(expected)}")


Behaviour = Callable[[Visit], Awaitable[None]]
KINDS: Sequence[tuple[Behaviour, int]] = (
    (Visit.leaves, 50),
    (Visit.half_closes, 10),
    (Visit.reads_slowly, 8),
    (Visit.pipelines, 8),
    (Visit.sends_trailers, 8),
    (Visit.is_of_elsewhere, 6),
    (Visit.goes_on_sending, 5),
    (Visit.sends_request, 5),
)


# A reset is a valid end of these.
CUT_OFF: Sequence[Behaviour] = (Visit.leaves, Visit.half_closes, Visit.reads_slowly, Visit.mutates)


def clients(seeds: Sequence[int]) -> Tally:
    """Run all behaviours against one server; a case is a client."""
    behaviours, weights = zip(*KINDS, strict=True)
    return _run("clients", seeds, lambda rng: rng.choices(behaviours, weights)[0])


def http_fuzz(seeds: Sequence[int]) -> Tally:
    """Send mutated requests; a case is one."""
    return _run("http-fuzz", seeds, lambda _: Visit.mutates)


def _run(name: str, seeds: Sequence[int], draw: Callable[[random.Random], Behaviour]) -> Tally:
    more_files()
    tally = Tally(name)
    with serving(*SERVER) as server:
        if why := asyncio.run(_crowd(server, seeds, draw, tally)):
            tally.add("leaked", "server", seeds[0], why)
        if why := server.end():
            tally.add("leaked", "server", seeds[0], why)
    return tally


async def _crowd(
    server: Server, seeds: Sequence[int], draw: Callable[[random.Random], Behaviour], tally: Tally
) -> str | None:
    """Run many clients at once; return a description of what is left of them."""
    expected = await answers_of(server.port, seeded_requests(REQUESTS, REQUESTS_SEED, LONGEST_ANSWER))
    warm, half = seeds[: min(200, len(seeds))], Tally("")
    await _visits(server, warm, draw, expected, half)  # warm-up: creates what is allocated once
    await asyncio.to_thread(server.at_rest)
    before = server.takes()
    before["front_end_threads"] += READERS
    await _visits(server, seeds, draw, expected, tally)
    if left := await asyncio.to_thread(server.at_rest):
        return left
    try:
        if await answers_of(server.port, list(expected)) != expected:
            tally.add("wrong", "afterwards", seeds[0], "other tokens than before")
    except WrongAnswerError as error:
        tally.add(error.kind, "afterwards", seeds[0], str(error))
    await asyncio.to_thread(eventually, lambda: not growth(before, server.takes(), STAYS), _REST_S)
    after = server.takes()
    tally.facts |= {f"{name}_after": value for name, value in after.items() if name.startswith("front_end")}
    tally.facts["grown_mb"] = (after["front_end_rss_bytes"] - before["front_end_rss_bytes"]) / 1e6
    if tally.facts["grown_mb"] > MOST_GROWTH_MB:
        return f"{tally.facts['grown_mb']:.0f} MB more"
    return growth(before, after, STAYS)


async def _visits(
    server: Server,
    seeds: Sequence[int],
    draw: Callable[[random.Random], Behaviour],
    expected: Mapping[SeededRequest, list[int]],
    tally: Tally,
) -> None:
    left = iter(seeds)

    async def slot() -> None:
        for seed in left:
            rng = random.Random(seed)
            behaviour = draw(rng)
            case = getattr(behaviour, "__name__", "")
            try:
                async with asyncio.timeout(ANSWER_S):
                    await behaviour(Visit(server.port, expected, rng))
            except WrongAnswerError as error:
                tally.add(error.kind, case, seed, str(error))
            except TimeoutError:
                tally.add("lost", case, seed, f"no answer in {ANSWER_S:g} s")
            except OSError as error:
                fine = behaviour in CUT_OFF and not isinstance(error, ConnectionRefusedError)
                tally.add(None if fine else "lost", case, seed, repr(error))
            else:
                tally.add(None, case, seed)

    await asyncio.gather(*(slot() for _ in range(AT_ONCE)))
