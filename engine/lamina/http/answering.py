"""One request on its way: its prompts in the engine, what is new of them, and its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from lamina.http.choice import Choice, Delta
from lamina.http.driver import Driver, News, Ticket
from lamina.http.errors import ApiError, ClosedError, FullError
from lamina.http.fields import Asked
from lamina.http.forms import Form
from lamina.http.tokenizer import Tokenizer
from lamina.serve import Sampling

# Tokens that wait for a client that does not read, before its request is called off.
MOST_UNSENT = 4096
RETRY_AFTER_S = 1


class Answering:
    """What a client asked for. All of it belongs to the event loop; the driver is asked across threads."""

    def __init__(
        self,
        driver: Driver,
        asked: Asked,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        form: Form,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._driver, self._asked, self.form = driver, asked, form
        arrived_s = time.monotonic()
        self.tickets = [Ticket(prompt, sampling, hear=self._hear, arrived_s=arrived_s) for prompt in prompts]
        n = sampling.n
        self.choices = [
            Choice(place * n + sample, asked, prompt, tokenizer)
            for place, prompt in enumerate(prompts)
            for sample in range(n)
        ]
        self._of_ticket = {
            ticket: self.choices[place * n : (place + 1) * n] for place, ticket in enumerate(self.tickets)
        }
        self._open = set(self.tickets)  # of which more is to be told
        self._unsent = 0
        self._news: list[News] = []
        self._waker: asyncio.Future[None] | None = None
        self.gone = False  # nobody is interested any more
        self.first_told = False

    def submit(self) -> None:
        """Let the prompts wait for their turn; an ApiError if they may not."""
        try:
            self._driver.submit(self.tickets)
        except FullError as error:
            wait = {"Retry-After": str(RETRY_AFTER_S)}
            raise ApiError(429, str(error), code="rate_limit_exceeded", headers=wait) from error
        except ClosedError as error:
            raise ApiError(503, str(error), code="closed", headers={"Connection": "close"}) from error

    async def taken(self) -> None:
        """Until the engine has all of them; an ApiError if it refuses one."""
        waiting = set(self.tickets)
        kept: list[News] = []
        while waiting and not self.gone:
            for news in await self._next():
                waiting.discard(news.ticket)
                self._require_sound(news)
                kept.append(news)
        self._news = kept + self._news

    def _require_sound(self, news: News) -> None:
        if news.refused:
            raise ApiError(400, news.refused, code="not_servable")
        if news.error:
            # Nobody else's request fails with this one's, unless the server is being ended.
            closed = self._driver.closed and not self._driver.error
            raise ApiError(503 if closed else 500, news.error, code="closed" if closed else "failed")

    def cancel(self) -> None:
        """Whatever still runs of it is not wanted."""
        self.gone = True
        if self._open:
            self._driver.cancel(self._open)
            self._open = set()
        self._wake()

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return not self._open

    def _hear(self, news: News) -> None:
        self._news.append(news)
        self._unsent += sum(len(piece.tokens) for piece in news.pieces)
        self._wake()

    @property
    def overrun(self) -> bool:
        """Its client has left too much unread."""
        return self._unsent > MOST_UNSENT

    def _wake(self) -> None:
        if self._waker and not self._waker.done():
            self._waker.set_result(None)

    async def _next(self) -> list[News]:
        """What is new, as soon as anything is; nothing if nobody is interested any more."""
        while not self._news and not self.gone:
            self._waker = asyncio.get_running_loop().create_future()
            await self._waker
        news, self._news, self._unsent = self._news, [], 0
        return news

    async def deltas(self) -> list[tuple[Choice, Delta]]:
        """What is new of each choice, of one that has several pieces as one."""
        found: dict[Choice, Delta] = {}
        for news in await self._next():
            self._require_sound(news)
            choices = self._of_ticket[news.ticket]
            for piece in news.pieces:
                choice = choices[piece.sample]
                if choice.finish_reason is None:
                    delta = choice.feed(piece)
                    found[choice] = _joined(found[choice], delta) if choice in found else delta
            if news.ended:
                self._open.discard(news.ticket)
            elif news.ticket in self._open and all(choice.finish_reason for choice in choices):
                # Each has met a stop string.
                news.ticket.satisfied = True
                self._driver.cancel([news.ticket])
                self._open.discard(news.ticket)
        return list(found.items())

    async def whole(self) -> dict[str, Any]:
        """The answer, when all of it is there."""
        deltas = {choice: Delta() for choice in self.choices}
        while not self.done:
            for choice, delta in await self.deltas():
                deltas[choice] = _joined(deltas[choice], delta)
        return {
            **self.form.head(chunk=False),
            **self.form.first(self.choices),
            "choices": [self.form.whole(choice, delta) for choice, delta in deltas.items()],
            "usage": self.usage(),
        }

    def usage(self, choice: Choice | None = None) -> dict[str, int]:
        """Tokens in and out so far, of one choice or of all."""
        prompt = len(choice.prompt) if choice else sum(len(ticket.prompt) for ticket in self.tickets)
        completion = choice.tokens if choice else sum(each.tokens for each in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def events(self, deltas: Sequence[tuple[Choice, Delta]]) -> Iterator[bytes]:
        """Chunks of a stream, as server-sent events."""
        options = self._asked.stream_options
        counted = bool(options and options.include_usage)
        always = counted and bool(options and options.continuous_usage_stats)
        head = self.form.head(chunk=True)
        for choice, delta in deltas:
            chunk = dict(head)
            if not self.first_told:
                chunk |= self.form.first(self.choices)
                self.first_told = True
            chunk["choices"] = [self.form.chunk(choice, delta)]
            choice.begun = True
            if counted:
                chunk["usage"] = self.usage(choice) if always else None
            yield event(chunk)
        if self.done and counted:
            yield event({**head, "choices": [], "usage": self.usage()})


def event(told: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(told) + b"\n\n"


def _joined(before: Delta, more: Delta) -> Delta:
    return Delta(before.text + more.text, [*before.tokens, *more.tokens], [*before.logprobs, *more.logprobs])
