"""What the endpoints share: driver, tokenizer, limits, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from lamina.http.answering import Answering
from lamina.http.api import ChatRequest, CompletionRequest
from lamina.http.driver import Driver, News
from lamina.http.errors import ApiError
from lamina.http.forms import ChatForm, CompletionForm, Form
from lamina.http.metrics import Meter
from lamina.http.stream import Answer, Stream
from lamina.http.tokenizer import Tokenizer
from lamina.serve import Engine, RequestError, Sampling

# Text that is longer than that is tokenized by another thread, so that nobody's tokens wait for it.
LONG_TEXT = 2000
# Log-probabilities are kept for all who ask, as columns for the longest answer among them.
MOST_LOGPROB_TOKENS = 4096
# No answer is longer, whatever the model and the memory allow: tables are as wide as the longest.
LONGEST_CONTEXT = 131_072


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes."""

    body_bytes: int = 8_000_000
    most_waiting: int = 1024
    most_connections: int = 4096
    client_s: float = 30.0  # for a request's header and body, and how long an answer may stay unread
    keep_alive_s: int = 5
    drain_s: float = 30.0
    max_model_len: int | None = None


@dataclass
class Service:
    """An engine that is served."""

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
            watch=self.meter,
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

    def _deliver(self, news: list[News]) -> None:
        """Once a step, from the driver's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_spread, news)

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
        """Whether anybody is being answered."""
        return self.answered > 0

    async def complete(self, asked: CompletionRequest) -> Answer:
        """Answer a completion."""
        form = CompletionForm(asked, self.model, self.tokenizer)
        special = asked.add_special_tokens is not False
        prompts = [
            prompt if isinstance(prompt, list) else await self._encode(prompt, special=special)
            for prompt in asked.prompts
        ]
        return await self._answer(asked, prompts, form)

    async def chat(self, asked: ChatRequest) -> Answer:
        """Answer a conversation."""
        tokenizer = self._require_tokenizer("messages")
        messages = [message.plain() for message in asked.messages]
        long = sum(len(message["content"]) for message in messages) > LONG_TEXT
        prompt = await asyncio.to_thread(tokenizer.chat, messages) if long else tokenizer.chat(messages)
        return await self._answer(asked, [prompt], ChatForm(asked, self.model, tokenizer))

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
        self, asked: CompletionRequest | ChatRequest, prompts: list[list[int]], form: Form
    ) -> Answer:
        self._require_sense(asked, len(prompts))
        sampling = self._sampling(asked, prompts)
        answering = Answering(self.driver, asked, prompts, sampling, form, self.tokenizer)
        answering.submit()
        try:
            await answering.taken()
        except BaseException:
            answering.cancel()
            raise
        return (Stream if asked.stream else Answer)(answering, self.sending)

    def _require_sense(self, asked: CompletionRequest | ChatRequest, prompts: int) -> None:
        if asked.model is not None and asked.model != self.model:
            raise ApiError(
                404,
                f"no model is called '{asked.model}': this server has {self.model}",
                param="model",
                code="model_not_found",
            )
        if asked.stop_strings and self.tokenizer is None:
            self._require_tokenizer("stop")
        if asked.stream_options and not asked.stream:
            raise ApiError(400, "stream_options go with stream: true", param="stream_options")
        if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
            raise ApiError(400, "top_logprobs go with logprobs: true", param="top_logprobs")
        if prompts > self.limits.most_waiting:
            raise ApiError(
                400,
                f"{prompts:,} prompts are more than the {self.limits.most_waiting:,} requests that may wait",
                param="prompt",
            )
        stops = asked.stop_strings or asked.stop_token_ids
        if asked.min_tokens and (stops or not asked.ignore_eos):
            raise ApiError(
                400,
                "min_tokens is served only with ignore_eos and without stops: leave it out",
                param="min_tokens",
            )

    def _sampling(self, asked: CompletionRequest | ChatRequest, prompts: list[list[int]]) -> Sampling:
        longest = max(map(len, prompts))
        most = asked.most_tokens(self.context - longest)
        if longest + most > self.context:
            raise ApiError(
                400,
                f"a prompt of {longest:,} tokens and {most:,} to make are more than the "
                f"{self.context:,} that fit",
                param="max_tokens" if longest < self.context else "prompt",
                code="context_length_exceeded",
            )
        if asked.min_tokens and asked.min_tokens > most:
            raise ApiError(400, f"min_tokens is above the {most:,} that may be made", param="min_tokens")
        logprobs = asked.most_logprobs()
        if logprobs is not None and most > MOST_LOGPROB_TOKENS:
            raise ApiError(
                400,
                f"logprobs are told of at most {MOST_LOGPROB_TOKENS:,} tokens of an answer: ask for "
                "fewer tokens",
                param="logprobs",
            )
        try:
            return Sampling(
                max_tokens=most,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_k=max(0, asked.top_k or 0),
                top_p=1.0 if asked.top_p is None else asked.top_p,
                seed=asked.seed,
                n=asked.choices,
                stop_tokens=tuple(dict.fromkeys(asked.stop_token_ids or ())),
                ignore_eos=bool(asked.ignore_eos),
                logprobs=None if logprobs is None else min(logprobs, self.engine.facts.vocab_size),
            )
        except RequestError as error:
            raise ApiError(400, str(error)) from error


def _spread(news: list[News]) -> None:
    for each in news:
        each.ticket.hear(each)
