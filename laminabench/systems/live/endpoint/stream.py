"""The answer to one attempt of a request: a stream of chunks that are counted as they come."""

from __future__ import annotations

import asyncio

import msgspec

from laminabench.systems.live.endpoint.chunk import Choice, Chunk, Told, dealt, read_chunk, tokens_in
from laminabench.systems.live.endpoint.events import Events, EventsError
from laminabench.systems.live.endpoint.records import Records

DONE = b"[DONE]"
# What is kept of an answer that is no stream, to be told of.
KEPT_BYTES = 1 << 16


class Stream:
    """Listens to one answer. `over` is set at its end; `error` is "" if all of it came."""

    __slots__ = (
        "_events",
        "_place",
        "_records",
        "_streams",
        "_unknown",
        "completion_counted",
        "done",
        "error",
        "fields",
        "finished_s",
        "headers_s",
        "made",
        "over",
        "plain",
        "prompt_counted",
        "status",
        "told",
    )

    def __init__(self, records: Records, place: int, over: asyncio.Future[None]) -> None:
        self._records, self._place, self.over = records, place, over
        self._events = Events()
        self._streams = False
        self._unknown: list[int] = []  # places among the chunks of those that did not say how many tokens
        self.plain = b""
        self.fields: dict[str, str] = {}
        self.status = -1
        self.headers_s = float("nan")
        self.finished_s = float("nan")  # the last chunk with tokens
        self.prompt_counted = self.completion_counted = -1
        self.made = 0  # tokens that were told of chunk by chunk
        self.told: Told | None = None
        self.done = False
        self.error = ""

    @property
    def chunks_came(self) -> bool:
        return self.made > 0 or bool(self._unknown)

    # What the connection tells.

    def started(self, status: int, fields: dict[str, str], at_s: float) -> None:
        self.status, self.fields, self.headers_s = status, fields, at_s
        self._streams = status == 200 and fields.get("content-type", "").lower().startswith(
            "text/event-stream"
        )

    def piece(self, data: bytes, at_s: float) -> None:
        if not self._streams:
            self.plain = (self.plain + data)[:KEPT_BYTES]
            return
        if self.error:
            return
        try:
            for event in self._events.feed(data):
                self._event(event, at_s)
        except EventsError as error:
            self.error = f"a broken stream: {error}"

    def ended(self, error: str) -> None:
        if not self.error:
            self.error = self._why(error)
        self._deal()
        if not self.over.done():
            self.over.set_result(None)

    def _why(self, error: str) -> str:
        if self.status == 200:
            if not self._streams:
                return error or "the answer is no stream of events"
            if not self.done:
                return error or "the stream stopped before its end"
            # Whatever became of the connection, all was said.
            return "" if self.chunks_came else "a stream without tokens"
        return error or f"HTTP {self.status}"

    # What the events say.

    def _event(self, event: bytes, at_s: float) -> None:
        if event == DONE:
            self.done = True
            return
        try:
            chunk = read_chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.error = self.error or "an event that is no part of a completion"
            return
        if chunk.error is not None:
            self.error = self.error or "an error in the stream"
            self.plain = self.plain or event[:KEPT_BYTES]
            return
        if chunk.choices:
            self._choice(chunk.choices[0], chunk, at_s)
        usage = chunk.usage
        if usage is not None:
            if usage.prompt_tokens is not None:
                self.prompt_counted = usage.prompt_tokens
            if usage.completion_tokens is not None:
                self.completion_counted = usage.completion_tokens

    def _choice(self, choice: Choice, chunk: Chunk, at_s: float) -> None:
        if choice.finish_reason:
            self.done = True
        usage = chunk.usage
        tokens: int
        told: Told
        # Usage after chunks that did without it is of the whole answer, and says nothing of this one.
        if usage is not None and usage.completion_tokens is not None and not self._unknown:
            tokens, told = usage.completion_tokens - self.made, "usage"
        else:
            tokens, told = tokens_in(choice)
        if told == "even":
            if choice.says_something or _silent(choice):
                self._unknown.append(len(self._records.chunk_tokens))
                self._came(0, "even", at_s)
        elif tokens > 0:
            self.made += tokens
            self._came(tokens, told, at_s)

    def _came(self, tokens: int, told: Told, at_s: float) -> None:
        self.told, self.finished_s = told, at_s
        self._records.chunk(self._place, at_s, tokens)

    def _deal(self) -> None:
        """Give the chunks that did not say how many tokens they have an even part of all."""
        if not self._unknown:
            return
        self._records.even[self._place] = True
        count = len(self._unknown)
        left = self.completion_counted - self.made if self.completion_counted >= 0 else count
        for place, tokens in zip(self._unknown, dealt(max(left, 0), count), strict=True):
            self._records.chunk_tokens[place] = tokens
            self._records.tokens += tokens


def _silent(choice: Choice) -> bool:
    """A token of a completion whose text is still to come, or that nobody makes text of."""
    return choice.text == "" and choice.delta is None and not choice.finish_reason
