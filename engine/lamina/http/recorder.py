"""Requests that outlive their connections and, by a journal, the server: clients come back for the rest.

All of it belongs to the event loop. Tokens are in the journal before a client gets them, so a client never
has more than a restarted server knows of. A request without a client is paused after a while: its memory
is freed, and it goes on from its tokens when a client comes back.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import TypeAdapter

from lamina.errors import CodedError
from lamina.http.api import GenerationRequest
from lamina.http.driver import Driver, Ticket, Update
from lamina.http.errors import ApiError, ClosedError, FullError
from lamina.serve import Piece, Sampling

LOGGER = logging.getLogger("lamina.http")
# Of requests that have ended or are paused: how many stay, with how many tokens in all, and how long.
MOST_RECORDINGS = 1000
MOST_TOKENS = 1 << 20
RETENTION_S = 600.0
# Tokens of requests that continue while their clients are away; beyond, those longest away are paused.
MOST_ABSENT = 1 << 24
# The journal is rewritten at twice what its recordings need, and this.
SLACK_BYTES = 1 << 24
TOKEN_BYTES = 4
RECORD_BYTES = 512  # of a request without its tokens
# Pieces that a client which comes back is fed at once: others wait no longer for the event loop.
FED = 256
SEEDS = 2**63
# How a request ended whose client had met a stop string, for which only clients look.
SATISFIED = "satisfied"
_SAMPLING = TypeAdapter(Sampling)


class RecordError(CodedError, ValueError):
    """A record of a journal that this server cannot have written."""


class Log(Protocol):
    """An append-only file of records, that another package provides."""

    size: int  # bytes

    def append(self, record: Any) -> None: ...
    def flush(self) -> None: ...
    def rewrite(self, records: list[Any]) -> None: ...


@dataclass(eq=False, slots=True)
class Recording:
    """A request with its tokens so far, whether it runs, is paused or has ended."""

    number: int  # in the journal
    key: bytes  # of the request id and the API key
    digest: bytes  # of the body
    created: int
    prompt: array[int]
    sampling: Sampling
    tokens: array[int] = field(default_factory=lambda: array("I"))
    finish: str | None = None
    error: str | None = None
    run: Ticket | None = None  # on its way through the driver
    taken: bool = False  # an engine has had it
    readers: list[Ticket] = field(default_factory=list)
    idle_s: float = field(default_factory=time.monotonic)  # since when it has had no reader, or ended

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def size(self) -> int:
        """Return the number of its tokens, the prompt's too."""
        return len(self.prompt) + len(self.tokens)

    def records(self) -> Iterator[list[Any]]:
        """Yield its records in the journal."""
        sampling = _SAMPLING.dump_json(self.sampling)
        yield ["begin", self.number, self.key, self.digest, self.created, self.prompt.tobytes(), sampling]
        if self.tokens or self.finish:
            yield ["tokens", self.number, self.tokens.tobytes(), self.finish]
        if self.error is not None:
            yield ["error", self.number, self.error]

    def updates(self, reader: Ticket) -> Iterator[Update]:
        """Yield all that has happened; a token at a time, so that its text is split as it was before."""
        finish = self.finish if self.finish in ("length", "stop") else None
        for at in range(0, len(self.tokens), FED):
            tokens = self.tokens[at : at + FED]
            pieces = [Piece(0, (token,)) for token in tokens]
            if at + len(tokens) == len(self.tokens):
                pieces[-1] = replace(pieces[-1], finish_reason=finish)  # type: ignore[arg-type]
            yield Update(reader, pieces=pieces)
        yield Update(reader, taken=True, ended=self.ended, error=self.error)


class Recorder:
    """All recordings of a server, by key."""

    def __init__(self, driver: Driver, log: Log, secret: str | None, grace_s: float, header: Any) -> None:
        self._driver, self._log, self._header = driver, log, header
        self._secret, self._grace_s = (secret or "").encode(), grace_s
        self._recordings: dict[bytes, Recording] = {}
        self._runs: dict[Ticket, Recording] = {}
        self._numbers = 0
        self._failed: str | None = None  # why nothing is written to the journal any more

    # The journal.

    def load(self, records: Iterable[Any]) -> None:
        """Take over a journal's records; a RecordError for one that cannot have been written."""
        numbered: dict[int, Recording] = {}
        for place, record in enumerate(records, 1):
            try:
                _load(record, numbered)
            except (KeyError, TypeError, ValueError) as error:
                raise RecordError("journal-damaged", f"record {place} makes no sense: {error}") from error
        self._recordings = {one.key: one for one in numbered.values()}
        self._numbers = max(numbered, default=-1) + 1

    def resume(self) -> None:
        """Resume all requests that have not ended, as many as may wait."""
        for recording in self._recordings.values():
            recording.idle_s = time.monotonic()
            if not recording.ended:
                try:
                    self._run(recording)
                except (ClosedError, FullError):
                    return  # the others go on when their clients come back

    def _write(self, records: Iterable[Any]) -> None:
        """Write records so that they survive this process; after an error nothing is written any more."""
        if self._failed:
            return
        with self._failing():
            for record in records:
                self._log.append(record)
            self._log.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = str(error)
            LOGGER.error("requests are not resumable any more: %s", error)

    def record(self, updates: list[Update]) -> None:
        """Write what is new, before clients get it."""
        records: list[Any] = []
        for update in updates:
            if (recording := self._runs.get(update.ticket)) is None:
                continue
            if update.pieces:
                tokens = array("I", [token for piece in update.pieces for token in piece.tokens])
                recording.tokens += tokens
                recording.finish = update.pieces[-1].finish_reason
                records.append(["tokens", recording.number, tokens.tobytes(), recording.finish])
            if update.refused:
                del self._recordings[recording.key]
                records.append(["drop", recording.number])
            elif update.error and not self._driver.closed:
                recording.error = update.error
                records.append(["error", recording.number, update.error])
        if records:
            self._write(records)

    def look(self) -> None:
        """Pause what no client has come back for, drop what is old, and keep the journal small."""
        now_s = time.monotonic()
        absent = [one for one in self._runs.values() if not one.readers]
        absent.sort(key=lambda one: one.idle_s)
        tokens = sum(one.size for one in absent)
        for recording in absent:
            if tokens <= MOST_ABSENT and now_s - recording.idle_s <= self._grace_s:
                break
            tokens -= recording.size
            self._halt(recording)
        idle = [one for one in self._recordings.values() if one.run is None and not one.readers]
        idle.sort(key=lambda one: one.idle_s)
        count, tokens, dropped = len(idle), sum(one.size for one in idle), []
        for recording in idle:
            if count <= MOST_RECORDINGS and tokens <= MOST_TOKENS and now_s - recording.idle_s <= RETENTION_S:
                break
            count, tokens = count - 1, tokens - recording.size
            dropped.append(["drop", self._recordings.pop(recording.key).number])
        if dropped:
            self._write(dropped)
        self._compact()

    def _compact(self) -> None:
        if self._failed:
            return
        needed = sum(RECORD_BYTES + TOKEN_BYTES * one.size for one in self._recordings.values())
        if self._log.size <= 2 * needed + SLACK_BYTES:
            return
        records = (record for one in self._recordings.values() for record in one.records())
        with self._failing():
            self._log.rewrite([self._header, *records])

    # Requests.

    def open(
        self, request: GenerationRequest, prompt: Sequence[int], sampling: Sampling, last_event: str | None
    ) -> Reader:
        """Return the way to a request's recording, a new one if its id is new."""
        key = hmac.digest(self._secret, (request.request_id or "").encode(), "sha256")
        body = request.model_dump_json(exclude={"request_id"}).encode()
        tokens = array("I", prompt)  # a list is nine times as large, and may stay without a client
        digest = hashlib.sha256(
            b"\0".join((type(request).__name__.encode(), body, tokens.tobytes()))
        ).digest()
        after = _number(last_event)
        if recording := self._recordings.get(key):
            if not hmac.compare_digest(recording.digest, digest):
                why = f"request_id {request.request_id} is of another request: choose a new one"
                raise ApiError(409, why, param="request_id", code="request_id_conflict")
            if after > len(recording.tokens):
                why = f"the request has {len(recording.tokens):,} tokens, and Last-Event-ID is {after:,}"
                raise ApiError(409, f"{why}: send it without", code="last_event_unknown")
            return Reader(self, recording, after)
        if last_event is not None:
            raise stream_unknown()
        if self._failed:
            raise ApiError(503, f"send no request_id: {self._failed}", code="journal_failed")
        if sampling.seed is None:  # so that it goes on with the same draws
            sampling = replace(sampling, seed=secrets.randbelow(SEEDS))
        self._numbers += 1
        return Reader(self, Recording(self._numbers, key, digest, int(time.time()), tokens, sampling), 0)

    def attach(self, recording: Recording, reader: Ticket) -> None:
        """Give a client all that has happened, and what happens from now on."""
        new = recording.key not in self._recordings
        if recording.run is None and not recording.ended:
            self._run(recording)
        if new:
            self._recordings[recording.key] = recording
            self._write(recording.records())
        if not recording.ended:
            recording.readers.append(reader)
        if recording.taken:
            for update in recording.updates(reader):
                reader.notify(update)

    def detach(self, recording: Recording, reader: Ticket) -> None:
        """Remove a client; the request continues, unless the client has met its stop string."""
        if reader not in recording.readers:
            return
        recording.readers.remove(reader)
        recording.idle_s = time.monotonic()
        if reader.satisfied and recording.run:
            recording.run.satisfied = True
            self._halt(recording)
            recording.finish = SATISFIED
            self._write([["tokens", recording.number, b"", SATISFIED]])

    def _run(self, recording: Recording) -> None:
        run = Ticket(
            recording.prompt,
            recording.sampling,
            notify=self._pass_on,
            arrived_s=time.monotonic(),
            made=tuple(recording.tokens),
            reported={0: len(recording.tokens)},
        )
        self._driver.submit([run])
        recording.run = run
        self._runs[run] = recording

    def _halt(self, recording: Recording) -> None:
        assert recording.run
        self._driver.cancel([recording.run])
        del self._runs[recording.run]
        recording.run = None

    def _pass_on(self, update: Update) -> None:
        """Pass an update of a run on to the clients."""
        if (recording := self._runs.get(update.ticket)) is None:
            return  # paused meanwhile: these tokens are made again
        recording.taken = recording.taken or update.taken
        if update.ended:
            del self._runs[update.ticket]
            recording.run, recording.idle_s = None, time.monotonic()
        readers = list(recording.readers)
        if update.ended:
            recording.readers.clear()
        for reader in readers:
            reader.notify(replace(update, ticket=reader))


@dataclass(slots=True)
class Reader:
    """The way of one client's answer to a recording, instead of to the driver."""

    _recorder: Recorder
    recording: Recording
    after: int  # tokens that the client has

    def submit(self, tickets: Sequence[Ticket]) -> None:
        self._recorder.attach(self.recording, tickets[0])

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._recorder.detach(self.recording, ticket)


def _load(record: Any, numbered: dict[int, Recording]) -> None:
    match record:
        case ["begin", int(number), bytes(key), bytes(digest), int(created), bytes(prompt), bytes(values)]:
            tokens, sampling = array("I", prompt), _SAMPLING.validate_json(values, strict=True)
            numbered[number] = Recording(number, key, digest, created, tokens, sampling, taken=True)
        case ["tokens", int(number), bytes(tokens), None | "length" | "stop" | "satisfied" as finish]:
            numbered[number].tokens.frombytes(tokens)
            numbered[number].finish = finish
        case ["error", int(number), str(error)]:
            numbered[number].error = error
        case ["drop", int(number)]:
            del numbered[number]
        case _:
            raise ValueError("it is of no known kind")


def stream_unknown() -> ApiError:
    """Return the error for a client that comes back too late, or to another server."""
    why = "the stream that Last-Event-ID is of is not here: send the request without, to begin again"
    return ApiError(404, why, code="stream_unknown")


def _number(last_event: str | None) -> int:
    if last_event is None:
        return 0
    if not (last_event.isascii() and last_event.isdigit() and len(last_event) < 10):
        raise ApiError(400, "Last-Event-ID is no id of an event of a stream", code="last_event")
    return int(last_event)
