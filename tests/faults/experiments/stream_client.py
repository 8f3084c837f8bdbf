"""Clients of a server that know the right answer to each request: streams, checked to the last token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np

VOCABULARY = 500  # of any model that is served
# The limit for an answer, including all faults meanwhile.
ANSWER_S = 600.0


@dataclass(frozen=True, slots=True)
class SeededRequest:
    """A request whose answer is always the same, as it has a seed of its own."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int

    @property
    def head_and_body(self) -> bytes:
        body = json.dumps(
            {
                "prompt": self.prompt,
                "max_tokens": self.max_tokens,
                "temperature": 1.0 if self.seed % 2 else 0.0,
                "seed": self.seed,
                "ignore_eos": True,
                "return_token_ids": True,
                "stream": True,
            }
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def seeded_requests(count: int, seed: int, longest: int) -> list[SeededRequest]:
    """Return a few requests, which all clients send repeatedly and whose tokens are known."""
    rng = random.Random(seed)
    return [
        SeededRequest(
            tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(4, 48))),
            rng.randrange(longest // 4, longest),
            rng.randrange(1 << 30),
        )
        for _ in range(count)
    ]


class WrongAnswerError(Exception):
    """An answer that differs from the expected one; `kind` is the tally's."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


@dataclass
class Times:
    """Times of the answers of one period, in seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    complete: int = 0
    tokens: int = 0

    def percentiles_ms(self) -> dict[str, float]:
        percentiles = {}
        for name, values in (("ttft", self.first), ("tbt", self.between)):
            for percentile in (50, 99):
                percentiles[f"{name}_p{percentile}_ms"] = (
                    float(np.percentile(values, percentile)) * 1000 if values else float("nan")
                )
        return percentiles


class Client:
    """One connection, reused for the next request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def answer(self, request: SeededRequest, times: Times | None = None) -> list[int]:
        """Return the tokens of a complete answer; a WrongAnswerError if there is none."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._answer(request, times or Times())
        except TimeoutError as error:
            await self.close()
            raise WrongAnswerError("lost", f"no whole answer in {ANSWER_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            await self.close()
            raise WrongAnswerError("lost", f"the answer broke off: {error!r}") from error

    async def _answer(self, request: SeededRequest, times: Times) -> list[int]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        sent_s = last_s = time.monotonic()
        writer.write(request.head_and_body)
        await writer.drain()
        status = await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status:
            rest = await reader.read(300)
            await self.close()
            raise WrongAnswerError("lost", f"{status!r} {rest[-200:]!r}")
        if b"chunked" not in head.lower():
            raise ValueError("it is no stream")
        tokens: list[int] = []
        ended = 0
        async for line in _lines(reader):
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                ended += 1
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise WrongAnswerError("lost", f"{event['error'].get('message')}")
            new = event["choices"][0].get("token_ids") or []
            now_s = time.monotonic()
            if new and not tokens:
                times.first.append(now_s - sent_s)
            elif new:
                times.between += [(now_s - last_s) / len(new)] * len(new)
            last_s = now_s
            tokens += new
            times.tokens += len(new)
        if ended != 1:
            raise WrongAnswerError("wrong", f"{ended} ends of one answer")
        times.complete += 1
        return tokens

    async def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a chunked body, to its end."""
    rest = b""
    while size := int(await reader.readline(), 16):
        *complete, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
        for line in complete:
            yield line.strip()
    await reader.readline()


def check_tokens(request: SeededRequest, made: Sequence[int], expected: Sequence[int]) -> None:
    """Raise a WrongAnswerError if the tokens differ from those of an undisturbed server."""
    if len(made) < request.max_tokens:
        raise WrongAnswerError("lost", f"{len(made)} of {request.max_tokens} tokens")
    if len(made) > request.max_tokens:
        raise WrongAnswerError("wrong", f"{len(made)} tokens, {request.max_tokens} were requested")
    if list(made) != list(expected):
        raise WrongAnswerError("wrong", "other tokens than undisturbed")


async def answers_of(
    port: int, requests: Sequence[SeededRequest], at_once: int = 16
) -> dict[SeededRequest, list[int]]:
    """Return the answers of an undisturbed server."""
    answers: dict[SeededRequest, list[int]] = {}
    left = iter(requests)

    async def some() -> None:
        client = Client(port)
        for request in left:
            answers[request] = await client.answer(request)
            check_tokens(request, answers[request], answers[request])
        await client.close()

    await asyncio.gather(*(some() for _ in range(at_once)))
    return answers
