"""What the endpoints share: driver, tokenizer, limits, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from lamina.http.answering import Answer, Answering, Stream
from lamina.http.api import ChatRequest, CompletionRequest
from lamina.http.driver import Driver, Update
from lamina.http.errors import ApiError
from lamina.http.forms import ChatForm, CompletionForm, Form
from lamina.http.metrics import Meter
from lamina.http.tokenizer import Tokenizer
from lamina.serve import Engine, RequestError, Sampling

# Text that is longer than that is tokenized by another thread, so that no other request's tokens wait for it.
LONG_TEXT = 2000
# Log-probabilities are kept in columns as long as the longest answer that has them.
MOST_LOGPROB_TOKENS = 4096
# No answer is longer, whatever the model and the memory allow: tables are as wide as the longest.
LONGEST_CONTEXT = 131_072


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 8_000_000
    most_waiting: int = 1024
    most_connections: int = 4096
    client_s: float = 30.0  # for a request's header and body, and how long an answer may stay unread
    keep_alive_s: int = 5
    drain_s: float = 30.0
    max_model_len: int | None = None


@dataclass
class Service:
    engine: Engine
    model: str
    tokenizer: Tokenizer | None = None
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = field(default=None, repr=False)
    version: str = ""

    def __post_init__(self) -> None:
        self.meter = Meter(self.engine)
        self.draining = False
        self.sending: set[Answer] = set()
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

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        most = min(self.engine.facts.max_positions, self.engine.kv_tokens, LONGEST_CONTEXT)
        return min(most, self.limits.max_model_len or most)

    def start(self) -> None:
        """Serve, from the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.driver.start()

    def _deliver(self, updates: list[Update]) -> None:
        """Once a step, from the driver's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_spread, updates)

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
    def busy(self) -> bool:
        return self.answered > 0

    async def complete(self, request: CompletionRequest) -> Answer:
        form = CompletionForm(request, self.model, self.tokenizer)
        special = request.add_special_tokens is not False
        prompts = [
            prompt if isinstance(prompt, list) else await self._encode(prompt, special=special)
            for prompt in request.prompts
        ]
        return await self._answer(request, prompts, form)

    async def chat(self, request: ChatRequest) -> Answer:
        tokenizer = self._require_tokenizer("messages")
        messages = [message.plain() for message in request.messages]
        long = sum(len(message["content"]) for message in messages) > LONG_TEXT
        prompt = await asyncio.to_thread(tokenizer.chat, messages) if long else tokenizer.chat(messages)
        return await self._answer(request, [prompt], ChatForm(request, self.model, tokenizer))

    async def _encode(self, text: str, *, special: bool) -> list[int]:
        tokenizer = self._require_tokenizer("prompt")
        if len(text) > LONG_TEXT:
            return await asyncio.to_thread(tokenizer.encode, text, special=special)
        return tokenizer.encode(text, special=special)

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
        self, request: CompletionRequest | ChatRequest, prompts: list[list[int]], form: Form
    ) -> Answer:
        self._require_sense(request, len(prompts))
        sampling = self._sampling(request, prompts)
        answering = Answering(self.driver, request, prompts, sampling, form, self.tokenizer)
        answering.submit()
        try:
            await answering.taken()
        except BaseException:
            answering.cancel()
            raise
        return (Stream if request.stream else Answer)(answering, self.sending)

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


def _spread(updates: list[Update]) -> None:
    for update in updates:
        update.ticket.notify(update)
