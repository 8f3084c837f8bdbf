"""The interface that Engine and Fleet share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from lamina.pipeline import EngineError
from lamina.serve.requests import Piece, Result, Step
from lamina.serve.sampling import Prompt, RequestError, Sampling

HARMS = ("kill", "stop")


class Served(ABC):
    """Requests by their numbers, until they end and their results are taken."""

    _requests: Mapping[int, object]
    _results: dict[int, Result]

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing waits or runs."""

    @abstractmethod
    def step(self) -> Step:
        """Return the next iteration."""

    @abstractmethod
    def submit(self, prompt: Prompt, sampling: Sampling | None = None) -> int:
        """Queue a request and return its number; a RequestError if it can never be served."""

    @abstractmethod
    def cancel(self, number: int) -> None:
        """Take a request out; what it has made is its result."""

    @abstractmethod
    def close(self) -> None:
        """End the workers, if there are any."""

    @abstractmethod
    def _pieces(self, number: int, delivered: Mapping[int, int]) -> list[Piece]:
        """Return the tokens of each sample beyond those delivered; none of a forgotten result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> None:
        while not self.idle:
            self.step()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Result]:
        """Submit all or, if one of them cannot be served, none; run, and give their results in order."""
        numbers: list[int] = []
        try:
            for prompt in prompts:
                numbers.append(self.submit(prompt, sampling))
        except (RequestError, EngineError):
            for number in numbers:
                self.cancel(number)
                self.result(number)
            raise
        self.run()
        return [self.result(number) for number in numbers]

    def stream(self, number: int) -> Iterator[Piece]:
        """Yield a request's tokens as they come; others are served meanwhile. Beam search speaks at its end.

        The result stays available. A request that failed raises RequestError here.
        """
        self._require_known(number)
        delivered: dict[int, int] = {}
        while True:
            ended = number not in self._requests
            for piece in self._pieces(number, delivered) if ended or self._rests(number) else ():
                delivered[piece.sample] = delivered.get(piece.sample, 0) + len(piece.tokens)
                yield piece
            if ended:
                self._require_no_failure(number)
                return
            if number in self._requests:
                self.step()

    def _rests(self, number: int) -> bool:  # noqa: ARG002
        """Return whether no iteration is under way that has the request; then it may have new tokens."""
        return True

    def result(self, number: int) -> Result:
        """Return the result of a request that has ended. It is stored until this call, and then forgotten."""
        if number in self._requests:
            raise RequestError("request-unfinished", f"request {number} has not ended yet")
        if number not in self._results:
            raise unknown(number)
        return self._results.pop(number)

    def made(self, number: int, since: int = 0) -> tuple[int, ...]:
        """Return the tokens of a request's first sample so far, from one of them on. Of a beam search none
        before it ends.
        """
        self._require_known(number)
        return next((piece.tokens for piece in self._pieces(number, {0: since}) if not piece.sample), ())

    def pieces(self, number: int, delivered: Mapping[int, int]) -> list[Piece]:
        """Return each sample's new tokens of an unfinished request, with log-probabilities if requested, and
        its end reason. Beam search has none.
        """
        if number not in self._requests:
            raise unknown(number)
        return self._pieces(number, delivered)

    def _require_known(self, number: int) -> None:
        if number not in self._requests and number not in self._results:
            raise unknown(number)

    def _require_no_failure(self, number: int) -> None:
        """Raise a RequestError for a request that ended with one, as long as its result is here."""
        result = self._results.get(number)
        if result and result.error:
            raise RequestError("request-failed", f"request {number} failed: {result.error}")


def unknown(number: int) -> KeyError:
    return KeyError(f"no request {number} is here: it never existed, or its result was already returned")


def require_harm(worker: str, how: str, workers: Sequence[str]) -> None:
    """Raise an EngineError if there is no such worker or fault."""
    if worker not in workers:
        there = ", ".join(workers) or "none"
        raise EngineError("engine-worker-unknown", f"no worker is called '{worker}': there are {there}")
    if how not in HARMS:
        raise EngineError("engine-harm-unknown", f"fault '{how}' is unknown: known are {', '.join(HARMS)}")
