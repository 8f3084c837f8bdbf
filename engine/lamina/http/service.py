"""The part that endpoints share: driver, tokenizer, limits, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from lamina.http.answering import (
    Answer,
    Answering,
    ChatForm,
    CompletionForm,
    Form,
    Stream,
    values_of_token,
)
from lamina.http.api import ChatRequest, CompletionRequest
from lamina.http.choice import Tokenizer
from lamina.http.driver import Driver, Ticket, Update
from lamina.http.errors import RETRY, ApiError
from lamina.http.recorder import Log, Reader, Recorder, stream_unknown
from lamina.serve import Engines, Fleet, RequestError, Result, Sampling, State, Step

T = TypeVar("T")

TEXT = "text/plain; version=0.0.4; charset=utf-8"
# A kind of an Accept header that is OpenMetrics, of a version from 1 on or of any.
_OPENMETRICS = re.compile(
    r"\s*application/openmetrics-text\s*(;\s*version=[1-9][0-9]*(\.[0-9]+)*\s*)?(;\s*(q|escaping)=[^;]*)*"
)

# Seconds between tokens: half a millisecond to a minute.
GAPS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 60.0,
)  # fmt: skip
WAITS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
AGE = "Seconds since an iteration ended or its prompts went on; 0 while there is nothing to do."
# A lost worker is replaced within some seconds, and what all are forked from within a minute: an engine that
# has got nowhere for longer hangs.
LONGEST_SILENCE_S = 60.0
# How often workers report how long they have worked, while there are requests.
SAMPLE_S = 1.0


class Histogram:
    """Counts of values by bucket: cheap to add to, unlike one that any thread may add to."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def metric(self, name: str, what: str) -> Metric:
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, what, buckets=buckets, sum_value=self._sum)


class Meter:
    """Counters that one thread adds to and another reads; what it reads may be a step old."""

    def __init__(self, engine: Engines) -> None:
        self._engine = engine
        self._gaps, self._sizes = Histogram(GAPS_S), Histogram(SIZES)
        self._first, self._durations = Histogram(WAITS_S), Histogram(WAITS_S)
        self._tokens_in = self._tokens_out = self._preemptions = 0
        self._ends: Counter[str] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()  # by path and status, of the event loop
        self._worked_s: dict[str, float] = {}
        self._sampled_s = 0.0

    # Called by the driver's thread.

    def stepped(self, step: Step) -> None:
        if step.size:
            self._sizes.add(step.size)
        self._preemptions += len(step.preempted)
        if step.ended_s - self._sampled_s > SAMPLE_S:
            self._sampled_s = step.ended_s
            self.sample_work()

    def sample_work(self) -> None:
        """Read how long workers have worked; by the thread that owns the engine."""
        self._worked_s = self._engine.worked_s()

    def reported(self, ticket: Ticket, tokens: int, at_s: float) -> None:
        if not tokens:
            return
        self._tokens_out += tokens
        if ticket.last_s:
            self._gaps.add(max(0.0, at_s - ticket.last_s), tokens)
        else:
            self._first.add(max(0.0, at_s - ticket.arrived_s))
            self._tokens_in += len(ticket.prompt)

    def ended(self, ticket: Ticket, result: Result) -> None:
        ends = {done.finish_reason for done in result.completions}
        if result.error:
            end = "failed"
        elif ticket.satisfied:
            end = "stop"
        else:
            end = next((end for end in ("cancelled", "length", "stop") if end in ends), "cancelled")
        self._ends[end] += 1
        if end in ("length", "stop"):
            self._durations.add(max(0.0, ticket.last_s - ticket.arrived_s))

    # Called for Prometheus.

    def page(self, driver: Driver, accept: str) -> tuple[bytes, str]:
        """Return all of it, as OpenMetrics where the reader accepts that, and its content type."""
        driver.schedule_call(self.sample_work)
        registry = CollectorRegistry()
        registry.register(_Collector(lambda: self._metrics(driver)))
        # Not by the library's own choice: it raises errors for versions that are none.
        if any(_OPENMETRICS.fullmatch(kind) for kind in accept.split(",")):
            return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return generate_latest(registry), TEXT

    def _metrics(self, driver: Driver) -> Iterator[Metric]:
        """Yield all metrics, under their Prometheus names."""
        engine = self._engine
        gap = "Seconds between two tokens of a request, as the engine made them."
        yield self._gaps.metric("lamina_time_between_tokens_seconds", gap)
        first = "Seconds from a request's arrival to its first token, as the engine made it."
        yield self._first.metric("lamina_time_to_first_token_seconds", first)
        duration = "Seconds from a request's arrival to its last token, of those that were not called off."
        yield self._durations.metric("lamina_request_seconds", duration)
        yield self._sizes.metric("lamina_batch_size", "Sequences of an iteration of one batch.")
        gauges = (
            ("lamina_requests_running", "Requests that are in a batch.", driver.running),
            ("lamina_requests_waiting", "Requests that have not begun.", driver.waiting),
            ("lamina_kv_tokens_used", "KV memory promised to requests, in tokens.", engine.used_kv_tokens),
            ("lamina_kv_tokens_capacity", "KV memory, in tokens.", engine.kv_tokens),
            ("lamina_iteration_age_seconds", AGE, driver.silent_s),
        )
        for name, what, value in gauges:
            yield GaugeMetricFamily(name, what, value=value)
        if isinstance(engine, Fleet):
            up = GaugeMetricFamily("lamina_instances", "Engines by what they do.", labels=["state"])
            states = Counter(engine.states)
            for state in get_args(State):
                up.add_metric([state], states[state])
            yield up
        counters = (
            ("lamina_prompt_tokens", "Tokens of prompts whose answers have begun.", self._tokens_in),
            ("lamina_completion_tokens", "Tokens made.", self._tokens_out),
            ("lamina_preemptions", "Requests that had to make room and began again.", self._preemptions),
            ("lamina_faults", "Workers lost and replaced, by occasion.", len(engine.faults)),
        )
        for name, what, count in counters:
            yield CounterMetricFamily(name, what, value=count)
        ends = {(end,): self._ends[end] for end in ("length", "stop", "cancelled", "failed")}
        yield _labelled("lamina_requests", "Requests by how they ended.", ["end"], ends)
        answers = {(path, str(status)): count for (path, status), count in sorted(self.answers.items())}
        what = "HTTP answers by path and status."
        yield _labelled("lamina_http_answers", what, ["path", "status"], answers)
        what = "Seconds that a worker computed, without waiting; updated every second under load."
        worked = {(worker,): seconds for worker, seconds in self._worked_s.items()}
        yield _labelled("lamina_worker_busy_seconds", what, ["worker"], worked)


def _labelled(name: str, what: str, labels: list[str], counts: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


class _Collector(NamedTuple):
    collect: Callable[[], Iterator[Metric]]


# Text that is longer than that is tokenized by another thread, so that no other request's tokens wait for it.
LONG_TEXT = 2000
MESSAGE_TEXT = 20  # what a message's own words count for
# So many parse and tokenize at once, and others wait: those whose clients leave meanwhile are not begun.
THREADS = 2
# Bytes of a body that a token of the longest prompt may take, and that everything else may.
TOKEN_BYTES = 32
REST_BYTES = 262_144
# Of all bodies together, whose prompts as lists of numbers take up to ten times as much.
MOST_BUFFERED_BYTES = 64_000_000
# Log-probabilities are stored in columns of the length of the longest answer with log-probabilities.
MOST_LOGPROB_TOKENS = 4096
# Of all choices of a request: they are in memory until its answer is sent.
MOST_ANSWERED = 1 << 21
# Of all requests whose answers are not sent and read: each takes some 50 bytes, and as much again in JSON.
MOST_UNREAD = 8 * MOST_ANSWERED
# No answer is longer, whatever the model and the memory allow: tables are as wide as the longest.
LONGEST_CONTEXT = 131_072


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int | None = None  # what the longest prompt may take
    most_waiting: int = 1024
    most_connections: int = 4096
    client_s: float = 30.0  # for a request's header and body, and how long an answer may stay unread
    keep_alive_s: int = 5
    drain_s: float = 30.0
    max_model_len: int | None = None
    allowed_hosts: tuple[str, ...] = ()  # names in addition to loopback's for clients without a key


class Requests(NamedTuple):
    """A journal of requests as it was opened: its file, its first record, and all others."""

    log: Log
    header: Any
    records: Iterable[Any]


@dataclass
class Service:
    engine: Engines
    model: str
    tokenizer: Tokenizer | None = None
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = field(default=None, repr=False)
    version: str = ""
    requests: Requests | None = None
    meter_kind: type[Meter] = Meter

    def __post_init__(self) -> None:
        self.meter = self.meter_kind(self.engine)
        self.draining = False
        self.sending: set[Answer] = set()
        self.body_bytes = self.limits.body_bytes or REST_BYTES + TOKEN_BYTES * self.context
        self.buffered_bytes, self.most_buffered_bytes = 0, max(MOST_BUFFERED_BYTES, 4 * self.body_bytes)
        self.unread, self.most_unread = 0, MOST_UNREAD  # tokens and log-probabilities of answers
        self.threads = ThreadPoolExecutor(THREADS, "reader")
        self.answered = 0  # requests for answers that are under way, from their headers to their last byte
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dead = asyncio.Event()
        self.driver = Driver(
            self.engine,
            self._deliver,
            most_waiting=self.limits.most_waiting,
            observer=self.meter,
            failed=self._failed,
        )
        self.recorder: Recorder | None = None
        if self.requests:
            log, header, records = self.requests
            self.recorder = Recorder(self.driver, log, self.api_key, self.limits.client_s, header)
            self.recorder.load(records)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        most = min(self.engine.facts.max_positions, self.engine.pool_tokens, LONGEST_CONTEXT)
        return min(most, self.limits.max_model_len or most)

    @property
    def instances(self) -> list[State] | None:
        """Return what each engine of a fleet does."""
        return self.engine.states if isinstance(self.engine, Fleet) else None

    def start(self) -> None:
        """Serve, from the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.driver.start()
        if self.recorder:
            self.recorder.resume()

    def _deliver(self, updates: list[Update]) -> None:
        """Update the metrics once a step, from the driver's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, updates)

    def _spread(self, updates: list[Update]) -> None:
        if self.recorder:
            self.recorder.record(updates)
        for update in updates:
            update.ticket.notify(update)

    def _failed(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.dead.set)

    @property
    def why_closed(self) -> str | None:
        """Why no requests are taken; None if they are."""
        if self.driver.error:
            return self.driver.error
        return "the server is draining: it takes no new requests" if self.draining else None

    @property
    def why_silent(self) -> str | None:
        """Why requests are taken, and would not be served."""
        if self.driver.ended and self._loop is not None:
            return "the thread that steps the engine has ended"
        if (silent_s := self.driver.silent_s) > LONGEST_SILENCE_S:
            return f"the engine has got no further for {silent_s:.0f} s, and requests wait for it"
        return None

    @property
    def busy(self) -> bool:
        return self.answered > 0

    async def complete(self, request: CompletionRequest, last_event: str | None) -> Answer:
        form = CompletionForm(request, self.model, self.tokenizer)
        special = request.add_special_tokens is not False
        prompts = [
            prompt if isinstance(prompt, list) else await self._encode(prompt, special=special)
            for prompt in request.prompts
        ]
        return await self._answer(request, prompts, form, last_event)

    async def chat(self, request: ChatRequest, last_event: str | None) -> Answer:
        tokenizer = self._require_tokenizer("messages")
        messages = [message.plain() for message in request.messages]
        long = sum(len(message["content"]) + MESSAGE_TEXT for message in messages) > LONG_TEXT
        prompt = await self._aside(tokenizer.chat, messages) if long else tokenizer.chat(messages)
        form = ChatForm(request, self.model, tokenizer)
        return await self._answer(request, [prompt], form, last_event)

    async def _encode(self, text: str, *, special: bool) -> list[int]:
        tokenizer = self._require_tokenizer("prompt")
        if len(text) > LONG_TEXT:
            return await self._aside(partial(tokenizer.encode, special=special), text)
        return tokenizer.encode(text, special=special)

    async def _aside(self, make: Callable[[T], list[int]], of: T) -> list[int]:
        """Run this in a thread; not at all if the waiting task is cancelled before its turn."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, make, of)

    def _require_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise ApiError(
                400,
                f"{self.model} is served without a tokenizer: send token ids as the prompt of "
                "/v1/completions, with return_token_ids, or start the server with --tokenizer",
                param=param,
                code="no_tokenizer",
            )
        return self.tokenizer

    async def _answer(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: list[list[int]],
        form: Form,
        last_event: str | None,
    ) -> Answer:
        self._require_sense(request, len(prompts))
        sampling = self._sampling(request, prompts)
        if reader := self._reader(request, prompts, sampling, last_event):
            form.resume(reader.recording.created)
            sampling = reader.recording.sampling
        answering = Answering(self.driver, request, prompts, sampling, form, self.tokenizer, reader)
        values = answering.most_values
        if self.unread + values > self.most_unread:
            why = f"answers under way may have {self.most_unread:,} tokens and log-probabilities: try later"
            raise ApiError(503, why, code="answers_too_large", headers=RETRY)
        self.unread += values
        try:
            answering.submit()
            await answering.taken()
        except BaseException:
            answering.cancel()
            self._let_go(values)
            raise
        kind = Stream if request.stream else Answer
        return kind(answering, self.sending, partial(self._let_go, values))

    def _reader(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: list[list[int]],
        sampling: Sampling,
        last_event: str | None,
    ) -> Reader | None:
        """Return the way to the recording of a request that can be resumed: engines resume one sample,
        and without log-probabilities.
        """
        single = len(prompts) == 1 and sampling.n == 1 and sampling.logprobs is None
        if self.recorder and request.request_id and single:
            return self.recorder.open(request, prompts[0], sampling, last_event)
        if last_event is not None:
            raise stream_unknown()
        return None

    def _let_go(self, values: int) -> None:
        self.unread -= values

    def _require_sense(self, request: CompletionRequest | ChatRequest, prompts: int) -> None:
        if request.model is not None and request.model != self.model:
            why = f"no model is called '{request.model}': this server has {self.model}"
            raise ApiError(404, why, param="model", code="model_not_found")
        if request.stop_strings:
            self._require_tokenizer("stop")
        if request.stream_options and not request.stream:
            raise ApiError(400, "stream_options go with stream: true", param="stream_options")
        if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs go with logprobs: true", param="top_logprobs")
        if prompts > (most := self.limits.most_waiting):
            why = f"{prompts:,} prompts are more than the {most:,} requests that may wait"
            raise ApiError(400, why, param="prompt")
        stops = request.stop_strings or request.stop_token_ids
        if request.min_tokens and (stops or not request.ignore_eos):
            why = "min_tokens is served only with ignore_eos and without stops: leave it out"
            raise ApiError(400, why, param="min_tokens")

    def _sampling(self, request: CompletionRequest | ChatRequest, prompts: list[list[int]]) -> Sampling:
        longest, fit = max(map(len, prompts)), self.context
        most = request.most_tokens(fit - longest)
        if longest + most > fit:
            why = f"a prompt of {longest:,} tokens and {most:,} to make are more than the {fit:,} that fit"
            param = "max_tokens" if longest < fit else "prompt"
            raise ApiError(400, why, param=param, code="context_length_exceeded")
        if request.min_tokens and request.min_tokens > most:
            raise ApiError(400, f"min_tokens is above the {most:,} that may be made", param="min_tokens")
        logprobs = request.most_logprobs()
        if logprobs is not None and most > MOST_LOGPROB_TOKENS:
            why = f"logprobs are given for at most {MOST_LOGPROB_TOKENS:,} tokens of an answer: ask for fewer"
            raise ApiError(400, why, param="logprobs")
        values = len(prompts) * request.choices * most * values_of_token(logprobs)
        if values > MOST_ANSWERED:
            why = f"{values:,} tokens and log-probabilities are more than the {MOST_ANSWERED:,} of an answer"
            raise ApiError(400, why, param="max_tokens", code="answer_too_large")
        try:
            return Sampling(
                max_tokens=most,
                temperature=1.0 if request.temperature is None else request.temperature,
                top_k=max(0, request.top_k or 0),
                top_p=1.0 if request.top_p is None else request.top_p,
                seed=request.seed,
                n=request.choices,
                stop_tokens=tuple(dict.fromkeys(request.stop_token_ids or ())),
                ignore_eos=bool(request.ignore_eos),
                logprobs=None if logprobs is None else min(logprobs, self.engine.facts.vocab_size),
            )
        except RequestError as error:
            raise ApiError(400, str(error)) from error
