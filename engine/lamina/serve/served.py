"""The interface that Engine and Fleet share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from lamina.pipeline import EngineError
from lamina.serve.requests import Piece, Result, Step
from lamina.serve.sampling import RequestError

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
    def _pieces(self, number: int, delivered: Mapping[int, int]) -> list[Piece]:
        """Return the tokens of each sample beyond those delivered; none of a forgotten result."""

    def run(self) -> None:
        while not self.idle:
            self.step()

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
