"""Prompts computed alongside decoding: a number of their tokens with each iteration of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lamina.cluster.prefill_dispatch import PrefillRequest
from lamina.model.prefill import CHUNK
from lamina.pipeline import PromptPart
from lamina.serve.decoder import Decoder
from lamina.serve.requests import Request

# Losses of workers after which a prompt is computed alone; those from outside count a quarter.
ALONE = 1.0


@dataclass
class _Begun:
    """A prompt of which an iteration computes a part, always at the same place."""

    request: Request
    left: list[PrefillRequest]  # sequences whose KV is not whole
    done: int = 0  # tokens of the first of them


@dataclass
class Taken:
    """The prompt parts that go with one iteration of a batch."""

    parts: list[PromptPart] = field(default_factory=list)
    expected: list[tuple[int, ...]] = field(default_factory=list)  # see BatchDelta
    # They join this iteration: their prompt is computed entirely before it, or this is its last part.
    joining: list[Request] = field(default_factory=list)
    refused: list[tuple[Request, str]] = field(default_factory=list)
    tokens: int = 0
    requests: list[Request] = field(default_factory=list)  # all whose prompts it computes

    def add(self, request: Request, tokens: int) -> None:
        self.tokens += tokens
        self.requests.append(request)


class PromptQueue:
    """Requests that have been promised memory, and wait for model workers to compute their prompts.

    An iteration computes at most `tokens` of prompts, in whole chunks. What fits joins at once; a longer
    prompt is computed in parts, and while others wait that fit, every second iteration is theirs. A prompt
    that workers may have been lost over is computed alone, so that the next loss shows whether it was to
    blame.
    """

    def __init__(
        self, decoder: Decoder, batches: int, tokens: int, refusal: Callable[[int], str | None]
    ) -> None:
        """`refusal` says why a prompt of so many tokens cannot be computed now, if it cannot."""
        self._decoder, self._tokens, self._refusal = decoder, tokens, refusal
        self._chunk = min(CHUNK, tokens)
        self._waiting: list[list[Request]] = [[] for _ in range(batches)]  # the first first
        self._begun: list[dict[int, _Begun]] = [{} for _ in range(batches)]  # by place
        self._others_turn = [False] * batches
        self._flying: dict[int, list[Request]] = {}  # by batch: whose prompts an iteration computes

    def __bool__(self) -> bool:
        return any(self._waiting) or any(self._begun)

    def add(self, request: Request, batch: int, pool: int) -> None:
        """Add an admitted request, which will join this batch."""
        request.batch, request.pool = batch, pool
        self._waiting[batch].append(request)
        self._waiting[batch].sort(key=lambda other: other.key)

    def leave(self, request: Request) -> None:
        for waiting, begun in zip(self._waiting, self._begun, strict=True):
            if request in waiting:
                waiting.remove(request)
            for place in [place for place, one in begun.items() if one.request is request]:
                del begun[place]

    def take(self, batch: int, place: int) -> Taken:
        """Take prompts for the batch's next iteration, which begins at this place."""
        taken = Taken()
        begun, waiting = self._begun[batch], self._waiting[batch]
        if not (begun or waiting):
            return taken
        if suspect := self._suspect():
            if suspect.batch != batch or any(self._flying.values()):
                return taken
            waiting = [suspect] if suspect in waiting else []
        others_first, self._others_turn[batch] = self._others_turn[batch], False
        if place in begun and not others_first:
            self._go_on(batch, place, taken)
        self._take_complete(waiting, taken)
        if place in begun and others_first:
            self._go_on(batch, place, taken)
        if place not in begun:
            self._begin(batch, place, waiting, taken)
        if taken.requests:
            self._flying[batch] = taken.requests
        return taken

    def landed(self, batch: int, failed: Mapping[int, str]) -> list[tuple[Request, str]]:
        """End an iteration; return the requests whose prompts it could not compute."""
        self._flying.pop(batch, None)
        failures = []
        for one in list(self._begun[batch].values()):
            why = next((failed[item.name] for item in one.left if item.name in failed), None)
            if why is not None:
                failures.append((one.request, why))
        return failures

    def broken_off(self) -> list[Request]:
        """Return the requests whose prompts were to be computed by aborted iterations."""
        interrupted = [request for flying in self._flying.values() for request in flying]
        self._flying.clear()
        return interrupted

    def clear(self) -> None:
        """Forget partly computed prompts: they are computed again."""
        self._flying.clear()
        for batch, begun in enumerate(self._begun):
            again = [one.request for one in begun.values()]
            begun.clear()
            self._decoder.unstage(again)
            for request in again:
                self.add(request, batch, request.pool)

    def _suspect(self) -> Request | None:
        """Return the request to compute alone, over whose prompt workers may have been lost."""
        here = [request for waiting in self._waiting for request in waiting if request.setbacks >= ALONE]
        here += [
            one.request for begun in self._begun for one in begun.values() if one.request.setbacks >= ALONE
        ]
        return min(here, key=lambda request: request.key, default=None)

    def _take_complete(self, waiting: list[Request], taken: Taken) -> None:
        """Take all complete prompts that fit, skipping larger ones."""
        for request in list(waiting):
            tokens = self._decoder.prompt_tokens(request)
            if taken.tokens + tokens > self._tokens:
                continue
            self._waiting[request.batch].remove(request)
            if why := self._refusal(tokens):
                taken.refused.append((request, why))
                continue
            if tokens:
                taken.add(request, tokens)
            taken.joining.append(request)

    def _begin(self, batch: int, place: int, waiting: list[Request], taken: Taken) -> None:
        """Take the first prompt that is too long for one iteration."""
        for request in list(waiting):
            if taken.tokens + self._chunk > self._tokens:
                return
            if self._decoder.prompt_tokens(request) <= self._tokens:
                continue  # it fits into the next one
            self._waiting[batch].remove(request)
            items = self._decoder.stage(request, request.pool)
            if why := self._refusal(max(len(item.text) for item in items)):
                taken.refused.append((request, why))
                continue
            self._begun[batch][place] = _Begun(request, items)
            self._go_on(batch, place, taken)
            return

    def _go_on(self, batch: int, place: int, taken: Taken) -> None:
        """Take as many full chunks of a prompt as there is room for."""
        one = self._begun[batch][place]
        before = taken.tokens
        while one.left and self._part(one, taken):
            pass
        if taken.tokens > before:
            taken.requests.append(one.request)
            self._others_turn[batch] = True
        if not one.left:
            del self._begun[batch][place]
            taken.joining.append(one.request)

    def _part(self, one: _Begun, taken: Taken) -> bool:
        item = one.left[0]
        total = len(item.text)
        room = (self._tokens - taken.tokens) // self._chunk * self._chunk
        if total - one.done <= self._tokens - taken.tokens:
            room = total - one.done  # its last chunk need not be whole
        end = one.done + min(room, total - one.done)
        if end == one.done:
            return False
        if one.done == 0:
            taken.expected.append(item.expected)
            one.request.expected.append(item.name)
        text = item.text[one.done : end]
        taken.parts.append(PromptPart(item.name, one.done, end, total, item.shared, item.pool, text))
        taken.tokens += end - one.done
        one.done = end
        if end == total:
            one.left.pop(0)
            one.done = 0
        return True
