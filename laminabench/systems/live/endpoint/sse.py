"""The answer to one attempt of a request: a stream of events whose tokens are counted as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from laminabench.systems.live.endpoint.records import Records

# More than any answer has, and no more than columns of numbers hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# How the number of tokens in an event is known; `even`: it is not.
CountedBy = Literal["usage", "token_ids", "logprobs", "even"]
# A server that never ends an event shall not fill the memory.
MOST_BYTES = 16 << 20
DONE = b"[DONE]"
# Bytes stored of an answer that is no stream, for the report.
PLAIN_BYTES = 1 << 16


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Logprobs(msgspec.Struct):
    tokens: list[Any] | None = None  # of a completion
    content: list[Any] | None = None  # of a chat


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


class Chunk(msgspec.Struct):
    """A streamed event: fields that are not here are skipped unread."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode
# Of JSON that is malformed, no UTF-8, or nested too deeply.
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def tokens_in(choice: Choice) -> tuple[int, CountedBy]:
    """Return the number of tokens in an event and how it is known; 0 and `even` if it is not."""
    if choice.token_ids is not None:
        return len(choice.token_ids), "token_ids"
    if choice.logprobs is not None:
        named = choice.logprobs.tokens if choice.logprobs.tokens is not None else choice.logprobs.content
        if named is not None:
            return len(named), "logprobs"
    return 0, "even"


def split_evenly(tokens: int, chunks: int) -> list[int]:
    """Split tokens over chunks as evenly as integers allow; earlier chunks have no fewer."""
    each, more = divmod(tokens, chunks)
    return [each + (place < more) for place in range(chunks)]


class EventsError(Exception):
    """The pieces are no stream of events."""


@dataclass(slots=True)
class Events:
    """The data of each server-sent event, once its last byte is here; fields and comments are left out."""

    _rest: bytes = b""  # of a line that is not whole
    _data: list[bytes] = field(default_factory=list)  # lines of an event that is not whole
    _data_bytes: int = 0  # their bytes

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the events that this piece completes."""
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
        carriage_return = b""
        if b"\r" in text:
            if text.endswith(b"\r"):
                # It may be the first half of a line's end.
                text, carriage_return = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._rest = lines.pop() + carriage_return
        if len(self._rest) + self._data_bytes > MOST_BYTES:
            raise EventsError(f"an event of more than {MOST_BYTES >> 20} MiB")
        events = []
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data, self._data_bytes = [], 0
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value)


@dataclass(slots=True)
class Stream:
    """A parser of one answer. `over` is set at its end; `error` is "" if all of it came."""

    _records: Records
    _place: int
    over: asyncio.Future[None]
    _events: Events = field(default_factory=Events)
    _streams: bool = False
    # Places among the chunks of those that did not say how many tokens.
    _unknown: list[int] = field(default_factory=list)
    plain: bytes = b""
    fields: dict[str, str] = field(default_factory=dict)
    status: int = -1
    headers_s: float = float("nan")
    finished_s: float = float("nan")  # the last chunk with tokens
    prompt_counted: int = -1
    completion_counted: int = -1
    made: int = 0  # tokens counted chunk by chunk
    counted_by: CountedBy | None = None
    done: bool = False
    error: str = ""

    @property
    def chunks_came(self) -> bool:
        return self.made > 0 or bool(self._unknown)

    # Called by the connection.

    def started(self, status: int, fields: dict[str, str], at_s: float) -> None:
        self.status, self.fields, self.headers_s = status, fields, at_s
        self._streams = status == 200 and fields.get("content-type", "").lower().startswith(
            "text/event-stream"
        )

    def piece(self, data: bytes, at_s: float) -> None:
        if not self._streams:
            self.plain = (self.plain + data)[:PLAIN_BYTES]
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
        self._split_unknown()
        if not self.over.done():
            self.over.set_result(None)

    def _why(self, error: str) -> str:
        if self.status == 200:
            if not self._streams:
                return error or "the answer is no stream of events"
            if not self.done:
                return error or "the stream stopped before its end"
            # Complete, whatever became of the connection.
            return "" if self.chunks_came else "a stream without tokens"
        return error or f"HTTP {self.status}"

    # What the events say.

    def _event(self, event: bytes, at_s: float) -> None:
        if event == DONE:
            self.done = True
            return
        try:
            chunk = read_chunk(event)
        except MALFORMED:
            self.error = self.error or "an event that is no part of a completion"
            return
        if chunk.error is not None:
            self.error = self.error or "an error in the stream"
            self.plain = self.plain or event[:PLAIN_BYTES]
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
        counted_by: CountedBy
        # Usage after chunks that did without it is of the whole answer, and says nothing of this one.
        if usage is not None and usage.completion_tokens is not None and not self._unknown:
            tokens, counted_by = usage.completion_tokens - self.made, "usage"
        else:
            tokens, counted_by = tokens_in(choice)
        if counted_by == "even":
            if choice.has_content or _silent(choice):
                self._unknown.append(len(self._records.chunk_tokens))
                self._came(0, "even", at_s)
        elif tokens > 0:
            self.made += tokens
            self._came(tokens, counted_by, at_s)

    def _came(self, tokens: int, counted_by: CountedBy, at_s: float) -> None:
        self.counted_by, self.finished_s = counted_by, at_s
        self._records.chunk(self._place, at_s, tokens)

    def _split_unknown(self) -> None:
        """Give the chunks that did not say how many tokens they have an even part of all."""
        if not self._unknown:
            return
        self._records.note(self._place, even=True)
        count = len(self._unknown)
        left = self.completion_counted - self.made if self.completion_counted >= 0 else count
        for place, tokens in zip(self._unknown, split_evenly(max(left, 0), count), strict=True):
            self._records.chunk_tokens[place] = tokens
            self._records.tokens += tokens


def _silent(choice: Choice) -> bool:
    """Return whether a completion's token has no text: it is still to come, or the server makes none."""
    return choice.text == "" and choice.delta is None and not choice.finish_reason
