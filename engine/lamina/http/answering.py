"""One request on its way: its prompts in the engine, and its answer on the way to a client.

A client may read slowly, or leave.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

from pydantic_core import to_json
from starlette.responses import Response

from lamina.http import answers
from lamina.http.api import MOST_CHOICES, GenerationRequest
from lamina.http.choice import Choice, Delta, Tokenizer, json_safe
from lamina.http.driver import Driver, Ticket, Update
from lamina.http.errors import RETRY, ApiError, ClosedError, ErrorAnswer, FullError
from lamina.http.recorder import Reader
from lamina.serve import Sampling, TokenLogprobs


class _Form:
    """The fields common to both kinds of answers."""

    prefix: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, request: GenerationRequest, model: str, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = None if request.return_tokens_as_token_ids else tokenizer
        self._ids = bool(request.return_token_ids)
        self._head: answers.Head = {
            "id": f"{self.prefix}-{request.request_id or uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def resume(self, created: int) -> None:
        """Continue an answer that was begun at this time."""
        self._head["created"] = created

    def empty_chunk(self) -> answers.Chunk:
        """Return a chunk that is about no choice."""
        # mypy: what is spread might have more keys.
        return {**self._head, "object": self.chunk_name, "choices": []}  # type: ignore[typeddict-item]

    def _rest(self, choice: Choice, delta: Delta) -> answers.Choice:
        """Return the fields common to both kinds of choices."""
        body: answers.Choice = {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._ids:
            body["token_ids"] = list(delta.tokens)
        return body

    def _name(self, token: int) -> str:
        return self._tokenizer.token(token) if self._tokenizer else f"token_id:{token}"


class CompletionForm(_Form):
    """/v1/completions. Choices have their prompts themselves: they may differ."""

    prefix, chunk_name = "cmpl", "text_completion"

    def complete(self, deltas: Mapping[Choice, Delta], usage: answers.Usage) -> answers.CompletionAnswer:
        choices = [self._choice(choice, delta) for choice, delta in deltas.items()]
        return {**self._head, "object": "text_completion", "choices": choices, "usage": usage}

    def chunk(self, choice: Choice, delta: Delta, *, first: bool) -> answers.Chunk:  # noqa: ARG002
        return {**self.empty_chunk(), "choices": [self._choice(choice, delta)]}

    def _choice(self, choice: Choice, delta: Delta) -> answers.CompletionChoice:
        body: answers.CompletionChoice = {
            **self._rest(choice, delta),  # type: ignore[typeddict-item]
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta),
        }
        if self._ids and not choice.begun:
            body["prompt_token_ids"] = list(choice.prompt)
        return body

    def _logprobs(self, choice: Choice, delta: Delta) -> answers.CompletionLogprobs | None:
        if not delta.logprobs:
            return None
        names = [self._name(token) for token in delta.tokens]
        offsets = []
        for name in names:
            offsets.append(choice.characters)
            choice.characters += len(name)
        return {
            "tokens": names,
            "token_logprobs": [json_safe(token.chosen) for token in delta.logprobs],
            "top_logprobs": [
                self._top(name, token) for name, token in zip(names, delta.logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, name: str, token: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens and the chosen one. Of two with the same text the likelier one
        counts.
        """
        top: dict[str, float] = {}
        for likely, logprob in token.top:
            top.setdefault(self._name(likely), json_safe(logprob))
        top.setdefault(name, json_safe(token.chosen))
        return top


class ChatForm(_Form):
    """/v1/chat/completions."""

    prefix, chunk_name = "chatcmpl", "chat.completion.chunk"

    def complete(self, deltas: Mapping[Choice, Delta], usage: answers.Usage) -> answers.ChatAnswer:
        choices: list[answers.ChatChoice] = []
        for choice, delta in deltas.items():
            message: answers.ChatMessage = {"role": "assistant", "content": delta.text, "refusal": None}
            logprobs = self._logprobs(delta)
            choices.append({**self._rest(choice, delta), "message": message, "logprobs": logprobs})
        body: answers.ChatAnswer = {
            **self._head,  # type: ignore[typeddict-item]
            "object": "chat.completion",
            "choices": choices,
            "usage": usage,
        }
        if self._ids:
            body["prompt_token_ids"] = list(next(iter(deltas)).prompt)
        return body

    def chunk(self, choice: Choice, delta: Delta, *, first: bool) -> answers.Chunk:
        text: answers.ChatDelta = {"content": delta.text}
        if not choice.begun:
            # With the first text and not before it: as many chunks as tokens.
            text["role"] = "assistant"
        logprobs = self._logprobs(delta)
        new: answers.ChatChunkChoice = {**self._rest(choice, delta), "delta": text, "logprobs": logprobs}
        body: answers.Chunk = {**self.empty_chunk(), "choices": [new]}
        if first and self._ids:
            body["prompt_token_ids"] = list(choice.prompt)
        return body

    def _logprobs(self, delta: Delta) -> answers.ChatLogprobs | None:
        if not delta.logprobs:
            return None
        content: list[answers.TokenLogprob] = [
            {
                **self._one(token, logprobs.chosen),
                "top_logprobs": [self._one(likely, logprob) for likely, logprob in logprobs.top],
            }
            for token, logprobs in zip(delta.tokens, delta.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> answers.TopLogprob:
        name = self._name(token)
        as_bytes = list(name.encode()) if self._tokenizer else None
        return {"token": name, "logprob": json_safe(logprob), "bytes": as_bytes}


Form = CompletionForm | ChatForm


# Tokens that wait for a client that does not read, before its request is called off.
MOST_UNSENT = 4096
# Pieces of text after which other requests have their turn: a client that comes back is fed many.
MOST_AT_ONCE = MOST_CHOICES
# Tokens of an answer from which on it is written by a thread of its own.
LONG_ANSWER = 4096
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
DONE = b"data: [DONE]\n\n"
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def values_of_token(logprobs: int | None) -> int:
    """Return how many values are stored for a token with this many of the likeliest."""
    return 1 if logprobs is None else 2 + logprobs


class Answering:
    """A client's request. All of it belongs to the event loop; the driver is called across threads."""

    def __init__(
        self,
        driver: Driver,
        request: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        form: Form,
        tokenizer: Tokenizer | None,
        reader: Reader | None = None,
    ) -> None:
        self._driver, self._request, self._form = driver, request, form
        # Of a request with a recording the tickets are the client's own: they never reach the driver.
        self._source: Driver | Reader = reader or driver
        self._numbered = reader is not None  # events have ids, the count of tokens so far
        self._after = reader.after if reader else 0  # tokens that the client has from an earlier connection
        arrived_s = time.monotonic()
        self.tickets = [
            Ticket(prompt, sampling, notify=self._receive, arrived_s=arrived_s) for prompt in prompts
        ]
        n = sampling.n
        self._of_ticket = {
            ticket: [Choice(place * n + sample, request, ticket.prompt, tokenizer) for sample in range(n)]
            for place, ticket in enumerate(self.tickets)
        }
        self.choices = [choice for choices in self._of_ticket.values() for choice in choices]
        self._open = set(self.tickets)  # those that are not done
        tokens = len(self.choices) * sampling.max_tokens
        # Tokens and log-probabilities in memory at once: of a stream what waits for its reader, or was made
        # before it came.
        made = len(reader.recording.tokens) if reader else 0
        self.most_values = values_of_token(sampling.logprobs) * (
            max(min(tokens, MOST_UNSENT), made) if request.stream else tokens
        )
        self._unsent = 0
        self._updates: list[Update] = []
        self._waker: asyncio.Future[None] | None = None
        self.disconnected = False  # the client has left
        self._begun = bool(self._after)  # a chunk has been sent
        for choice in self.choices:
            choice.begun = self._begun

    def submit(self) -> None:
        try:
            self._source.submit(self.tickets)
        except FullError as error:
            raise ApiError(429, str(error), code="rate_limit_exceeded", headers=RETRY) from error
        except ClosedError as error:
            raise ApiError(503, str(error), code="closed", headers={"Connection": "close"}) from error

    async def taken(self) -> None:
        """Wait until the engine has all of them; an ApiError if it refuses one."""
        waiting = set(self.tickets)
        others: list[Update] = []
        while waiting and not self.disconnected:
            for update in await self._next():
                waiting.discard(update.ticket)
                self._require_sound(update)
                others.append(update)
        self._updates = others + self._updates

    def _require_sound(self, update: Update) -> None:
        if update.refused:
            raise ApiError(400, update.refused, code="not_servable")
        if update.error:
            # No other request fails with this one, unless the server is being ended.
            closed = self._driver.closed and not self._driver.error
            raise ApiError(503 if closed else 500, update.error, code="closed" if closed else "failed")

    def cancel(self) -> None:
        """Call off whatever of it still runs."""
        self.disconnected = True
        if self._open:
            self._source.cancel(self._open)
            self._open = set()
        self._wake()

    @property
    def done(self) -> bool:
        return not self._open

    def _receive(self, update: Update) -> None:
        self._updates.append(update)
        self._unsent += sum(len(piece.tokens) for piece in update.pieces)
        self._wake()

    @property
    def overrun(self) -> bool:
        """Whether its client has left too much unread."""
        return self._unsent > MOST_UNSENT

    def _wake(self) -> None:
        if self._waker and not self._waker.done():
            self._waker.set_result(None)

    async def _next(self) -> list[Update]:
        """Wait for and return updates; none once the client has left."""
        while not self._updates and not self.disconnected:
            self._waker = asyncio.get_running_loop().create_future()
            await self._waker
        updates, self._updates, self._unsent = self._updates, [], 0
        return updates

    async def deltas(self) -> dict[Choice, Delta]:
        """Return each choice's new text; several pieces of one are joined."""
        deltas: dict[Choice, list[Delta]] = {}
        for update in await self._next():
            self._require_sound(update)
            choices = self._of_ticket[update.ticket]
            for piece in update.pieces:
                choice = choices[piece.sample]
                if choice.finish_reason is None:
                    delta = choice.feed(piece)
                    if choice.tokens > self._after:
                        deltas.setdefault(choice, []).append(delta)
            if update.ended:
                self._open.discard(update.ticket)
            elif update.ticket in self._open and all(choice.finish_reason for choice in choices):
                # All have met a stop string.
                update.ticket.satisfied = True
                self._source.cancel([update.ticket])
                self._open.discard(update.ticket)
            if len(update.pieces) > MOST_AT_ONCE:
                await asyncio.sleep(0)
        return {choice: Delta.joined(new) for choice, new in deltas.items()}

    async def complete(self) -> bytes:
        """Return the answer's body, when all of it is there."""
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in self.choices}
        while not self.done:
            for choice, delta in (await self.deltas()).items():
                deltas[choice].append(delta)
        if self.usage()["completion_tokens"] > LONG_ANSWER:
            return await asyncio.to_thread(self._written, deltas)
        return self._written(deltas)

    def _written(self, deltas: dict[Choice, list[Delta]]) -> bytes:
        joined = {choice: Delta.joined(each) for choice, each in deltas.items()}
        return to_json(self._form.complete(joined, self.usage()))

    def usage(self, choice: Choice | None = None) -> answers.Usage:
        """Return the tokens in and out so far, of one choice or of all."""
        prompt = len(choice.prompt) if choice else sum(len(ticket.prompt) for ticket in self.tickets)
        completion = sum(one.tokens for one in ([choice] if choice else self.choices))
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def events(self, deltas: dict[Choice, Delta]) -> Iterator[bytes]:
        """Yield chunks of a stream, as server-sent events."""
        options = self._request.stream_options
        counted = bool(options and options.include_usage)
        always = counted and bool(options and options.continuous_usage_stats)
        for choice, delta in deltas.items():
            chunk = self._form.chunk(choice, delta, first=not self._begun)
            self._begun = choice.begun = True
            if counted:
                chunk["usage"] = self.usage(choice) if always else None
            yield event(chunk, choice.tokens if self._numbered else None)
        if self.done and counted:
            yield event({**self._form.empty_chunk(), "usage": self.usage()})


def event(body: answers.Chunk | ErrorAnswer, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"data: " + to_json(body) + b"\n\n"


class Answer(Response):
    """Sends an answer when it is whole; if the client leaves, its request is called off."""

    def __init__(self, answering: Answering, sending: set[Answer], let_go: Callable[[], None]) -> None:
        super().__init__()
        self._let_go = let_go  # of its share of memory
        self.answering = answering
        self._sending = sending  # all that are under way
        self.blocked_since: float | None = None  # a send that has not ended
        self._abort: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._abort = scope.get("state", {}).get("abort", self._abort)
        watcher = asyncio.create_task(self._watch(receive))
        self._sending.add(self)
        try:
            await self.answer(send)
        finally:
            self._sending.discard(self)
            watcher.cancel()
            self.answering.cancel()
            when_read = scope.get("state", {}).get("when_read")
            (when_read(self._let_go) if when_read else self._let_go())

    async def answer(self, send: Send) -> None:
        try:
            status, body = 200, await self.answering.complete()
            if self.answering.disconnected:
                return
        except ApiError as error:
            status, body = error.status, error.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send(send, {"type": "http.response.start", "status": status, "headers": headers})
        await self.send(send, {"type": "http.response.body", "body": body})

    async def send(self, send: Send, message: Message) -> None:
        """Send one message; it takes as long as the client does."""
        self.blocked_since = time.monotonic()
        await send(message)
        self.blocked_since = None

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.answering.cancel()

    def look(self, most_s: float) -> None:
        """Hang up on a client that does not read."""
        since = self.blocked_since
        if self.answering.overrun or (since is not None and time.monotonic() - since > most_s):
            self.answering.cancel()
            self._abort()


class Stream(Answer):
    """Sends tokens as they come, as server-sent events."""

    async def answer(self, send: Send) -> None:
        """Stream events until the last token, or an error, which is then the last event."""
        answering = self.answering
        await self.send(send, {"type": "http.response.start", "status": 200, "headers": EVENTS})
        while not answering.done:
            try:
                deltas = await answering.deltas()
            except ApiError as error:
                await self._send_body(send, event(error.answer()) + DONE, more=False)
                return
            if answering.disconnected:
                break
            if body := b"".join(answering.events(deltas)):
                await self._send_body(send, body, more=True)
        if not answering.disconnected:
            await self._send_body(send, DONE, more=False)

    async def _send_body(self, send: Send, body: bytes, *, more: bool) -> None:
        await self.send(send, {"type": "http.response.body", "body": body, "more_body": more})
