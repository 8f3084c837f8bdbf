"""The engine in one process: requests in, tokens out, one iteration of the batch at a time."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lamina._native import Scheduler
from lamina.serve.core import Core
from lamina.serve.decoder import SEEDS, Decoder
from lamina.serve.options import CoreOptions, EngineError, require_count
from lamina.serve.prompts import Prompt, checked_prompt
from lamina.serve.requests import Piece, Request, Result
from lamina.serve.sampling import RequestError, Sampling
from lamina.serve.step import Step

# From what a request asks and its prompt's length to its place in the queue: smaller first, then who came
# first.
Policy = Callable[[Sampling, int], int]
POLICIES: dict[str, Policy] = {
    "fifo": lambda sampling, prompt_tokens: 0,
    "sjf": lambda sampling, prompt_tokens: sampling.max_tokens,
}
ADMISSIONS = ("reserve", "grow")
LARGEST_PRIORITY = 2**30
NUMBERS = 2**32  # request numbers that come before a priority's next value


class Engine:
    """Decodes with continuous batching, attention apart from the model.

    `model` is a folder with a Hugging Face model, a config.json (with load_format="dummy") or a model object.
    The other arguments are those of `CoreOptions`. One thread at a time may use an engine.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_sequences: int = 256,
        admission: str = "reserve",
        policy: str | Policy = "fifo",
        **core: Any,
    ) -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise EngineError(
                f"policy '{policy}': known are {', '.join(POLICIES)}, or a function of your own"
            )
        self._policy = POLICIES[policy] if isinstance(policy, str) else policy
        require_count("max_sequences", max_sequences)
        if admission not in ADMISSIONS:
            raise EngineError(f"admission '{admission}': known are {', '.join(ADMISSIONS)}")
        options = CoreOptions(**core)
        self._decode_only = options.decode_only
        self._max_sequences = max_sequences
        self._core = Core(model, options, max_sequences=max_sequences)
        self._scheduler = Scheduler(self._core.arena.capacity, max_sequences, admission=admission)
        self._decoder = Decoder(self._core)
        self._requests: dict[int, Request] = {}
        self._by_place: dict[int, Request] = {}
        self._results: dict[int, Result] = {}
        self._numbers = 0
        self._broken = False

    @property
    def core(self) -> Core:
        """The model, its attention worker and the KV arena."""
        return self._core

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._requests

    # Requests come and go.

    def submit(self, prompt: Prompt, sampling: Sampling | None = None) -> int:
        """Let a request wait for its turn; its number. Raises RequestError when it can never be served.

        `prompt` is token ids, or for a decode-only engine how many there are meant to be: such requests start
        with made-up KV, their tokens mean nothing, and no end token ends them.
        """
        return self._enqueue(*self._checked(prompt, sampling or Sampling()))

    def _checked(
        self, prompt: Prompt, sampling: Sampling
    ) -> tuple[NDArray[np.int64], Sampling, tuple[int, ...]]:
        """Prompt, sampling and end tokens, if they can be served; nothing has changed otherwise."""
        conversion = self._core.conversion
        sampling.require_sense(conversion.vocab_size)
        tokens = checked_prompt(prompt, conversion.vocab_size, by_length=self._decode_only)
        stops = set(sampling.stop_tokens)
        if not sampling.ignore_eos and not self._decode_only:
            stops.update(conversion.eos_token_ids)
        if sampling.beams > 1 and len(stops) >= conversion.vocab_size:
            raise RequestError("every token is an end token: a beam search needs one to go on with")
        if sampling.width > self._max_sequences:
            raise RequestError(
                f"{sampling.width} sequences side by side are more than the {self._max_sequences} that this "
                "engine decodes together (max_sequences)"
            )
        # The last token made is never read, so it needs no position.
        if len(tokens) + sampling.max_tokens - 1 > conversion.max_positions:
            raise RequestError(
                f"a prompt of {len(tokens):,} tokens and {sampling.max_tokens:,} to make need more than the "
                f"model's {conversion.max_positions:,} positions"
            )
        return tokens, sampling, tuple(sorted(stops))

    def _enqueue(self, tokens: NDArray[np.int64], sampling: Sampling, stops: tuple[int, ...]) -> int:
        number = self._numbers
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % SEEDS
        key = self._priority(sampling, len(tokens)) * NUMBERS + number % NUMBERS
        # The last thing that may fail: what the scheduler has taken in, somebody must own.
        place = self._scheduler.add(len(tokens), sampling.max_tokens, width=sampling.width, key=key)
        if place is None:
            raise RequestError(
                f"a prompt of {len(tokens):,} tokens and {sampling.width} x {sampling.max_tokens:,} to make "
                f"do not fit in the KV memory of {self._core.arena.capacity:,} tokens, even alone"
            )
        request = Request(number, tokens, sampling, stops, seed, place)
        self._numbers += 1
        self._requests[number] = self._by_place[place] = request
        return number

    def _priority(self, sampling: Sampling, prompt_tokens: int) -> int:
        priority = self._policy(sampling, prompt_tokens)
        if not hasattr(priority, "__index__") or abs(priority) > LARGEST_PRIORITY:
            raise EngineError(
                f"the policy gave {priority!r}: a priority is a whole number, at most {LARGEST_PRIORITY:,} "
                "either side of 0"
            )
        return operator.index(priority)

    def cancel(self, number: int) -> None:
        """Take a request out; what it has made is its result. One that has ended stays as it ended."""
        request = self._requests.get(number)
        if request is not None:
            self._scheduler.remove(request.place)
            self._decoder.end(request, "cancelled")
            self._forget(request)
        elif number not in self._results:
            raise _unknown(number)

    def result(self, number: int) -> Result:
        """What came of a request that has ended. It is kept until it is asked for, and then forgotten."""
        if number in self._requests:
            raise RequestError(f"request {number} has not ended yet")
        if number not in self._results:
            raise _unknown(number)
        return self._results.pop(number)

    # Time passes.

    def step(self) -> Step:
        """One iteration of the batch, with the prompts of those who join it. Does nothing when idle."""
        if self._broken:
            raise EngineError("an iteration was broken off, and its KV is half written: make a new engine")
        if self.idle:
            return Step()
        self._broken = True
        with torch.inference_mode():
            step = self._iteration()
        self._broken = False
        return step

    def run(self) -> None:
        """Steps until nothing waits or runs."""
        while not self.idle:
            self.step()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Result]:
        """Submit all or, if one of them cannot be served, none; run, and give their results in order."""
        checked = [self._checked(prompt, sampling or Sampling()) for prompt in prompts]
        numbers: list[int] = []
        try:
            for one in checked:
                numbers.append(self._enqueue(*one))
        except (RequestError, EngineError):
            for number in numbers:
                self.cancel(number)
                self.result(number)
            raise
        self.run()
        return [self.result(number) for number in numbers]

    def stream(self, number: int) -> Iterator[Piece]:
        """A request's tokens as they come; others are served meanwhile. Beam search speaks at its end.

        The result stays to be asked for. A request that failed raises RequestError here.
        """
        if number not in self._requests and number not in self._results:
            raise _unknown(number)
        told: dict[int, int] = {}
        while True:
            ended = number not in self._requests
            for sample, tokens in self._made_since(number, told).items():
                if tokens:
                    told[sample] = told.get(sample, 0) + len(tokens)
                    yield Piece(sample, tokens)
            if ended:
                result = self._results.get(number)
                if result and result.error:
                    raise RequestError(f"request {number} failed: {result.error}")
                return
            if number in self._requests:
                self.step()

    def _made_since(self, number: int, told: dict[int, int]) -> dict[int, tuple[int, ...]]:
        request = self._requests.get(number)
        if request is not None:
            return self._decoder.made_since(request, told)
        result = self._results.get(number)  # gone if somebody has asked for it
        completions = result.completions if result else ()
        return {i: done.tokens[told.get(i, 0) :] for i, done in enumerate(completions)}

    def _iteration(self) -> Step:
        started = perf_counter()
        step = Step()
        preempted, joined = self._scheduler.advance()
        for place in preempted.tolist():
            self._decoder.park(self._by_place[place])
        before = perf_counter()
        for place in joined.tolist():
            self._begin(self._by_place[place], step)
        step.prefill_s = perf_counter() - before
        over = self._decoder.iterate(step)
        done = set(self._scheduler.finish().tolist())
        for number in sorted(over):
            request = self._requests[number]
            # Those that made all their tokens the scheduler knows of; those that met a stop token it does
            # not.
            if request.place not in done:
                self._scheduler.remove(request.place)
            self._forget(request)
            step.ended.append(number)
        known = step.prefill_s + step.model_s + step.attention_s + step.sampling_s
        step.host_s = perf_counter() - started - known
        return step

    def _begin(self, request: Request, step: Step) -> None:
        """Compute a request's prompt. Should that fail, for want of memory say, the others go on."""
        try:
            self._decoder.begin(request)
        except Exception as error:
            self._scheduler.remove(request.place)
            self._decoder.end(request, "failed")
            self._forget(request, error=f"its prompt could not be computed: {error}")
            step.ended.append(request.number)

    def _forget(self, request: Request, error: str | None = None) -> None:
        """From request to result."""
        del self._requests[request.number], self._by_place[request.place]
        completions = tuple(done for _, done in sorted(request.ended.items()))
        self._results[request.number] = Result(
            request.number, completions, len(request.prompt), request.preemptions, error
        )

    def check_integrity(self) -> None:
        """Recount scheduler and arena; raise RuntimeError naming the first thing found wrong."""
        self._scheduler.check_integrity()
        self._core.arena.check_integrity()
        if self.idle and self._core.arena.used:
            raise RuntimeError(f"nobody runs and {self._core.arena.used} slots are taken")


def _unknown(number: int) -> KeyError:
    return KeyError(f"no request {number} is here: it never was, or its result has been asked for")
