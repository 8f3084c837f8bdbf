"""Log-probabilities of the sequences that ask for them, kept as columns while they run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import Revealed

NONE = -1


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's own log-probability, and the likeliest tokens with theirs."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class LogprobTable:
    """For each sequence that asked, the log-probabilities of its tokens so far.

    They are the model's own: before temperature, top-k and top-p. Memory is taken for those who ask only, as
    much as the one that asks for most.
    """

    def __init__(self) -> None:
        self._place = np.full(0, NONE, np.int64)  # by row
        self._most = np.zeros(0, np.int64)  # by place, as all below
        self._chosen = np.empty((0, 0), np.float32)
        self._top_tokens = np.empty((0, 0, 0), np.int64)
        self._top = np.empty((0, 0, 0), np.float32)
        self._spare: list[int] = []

    def open(self, row: int, tokens: int, most: int) -> None:
        """The sequence of a row asks for so many likeliest of each of its tokens."""
        if row >= self._place.size:
            more = np.full(max(64, row + 1), NONE, np.int64)
            self._place = np.concatenate([self._place, more])
        if not self._spare:
            self._grow(more_places=max(8, self._most.size), tokens=tokens, most=most)
        self._grow(more_places=0, tokens=tokens, most=most)
        self._place[row] = place = self._spare.pop()
        self._most[place] = most

    def record(
        self,
        rows: NDArray[np.int64],
        made: NDArray[np.int64],
        revealed: Revealed,
        which: NDArray[np.intp],
    ) -> None:
        """The batch's rows have their next tokens; `made` is how many each row had before, by row.

        `which` of those revealed are the ones to keep: a beam search asks for other reasons.
        """
        if not which.size:
            return
        mine = rows[revealed.rows[which]]
        places, number = self._place[mine], made[mine]
        most = min(int(self._most[places].max()), revealed.tokens.shape[1])
        self._chosen[places, number] = revealed.chosen[which]
        self._top_tokens[places, number, :most] = revealed.tokens[which, :most]
        self._top[places, number, :most] = revealed.logs[which, :most]

    def of(self, row: int, tokens: int, since: int = 0) -> tuple[TokenLogprobs, ...] | None:
        """What the first tokens of a row's sequence came with, from one of them on; None if it did not
        ask.
        """
        if row >= self._place.size or self._place[row] == NONE:
            return None
        place = self._place[row]
        most = self._most[place]
        chosen = self._chosen[place, since:tokens].tolist()
        names = self._top_tokens[place, since:tokens, :most].tolist()
        values = self._top[place, since:tokens, :most].tolist()
        return tuple(
            TokenLogprobs(own, tuple(zip(ids, logs, strict=True)))
            for own, ids, logs in zip(chosen, names, values, strict=True)
        )

    def close(self, rows: list[int]) -> None:
        """The sequences are over; those that never asked do not mind."""
        for row in rows:
            if row < self._place.size and self._place[row] != NONE:
                self._spare.append(int(self._place[row]))
                self._place[row] = NONE

    def _grow(self, more_places: int, tokens: int, most: int) -> None:
        places = self._most.size + more_places
        have_tokens, have_most = self._chosen.shape[1], self._top.shape[2]
        if not more_places and tokens <= have_tokens and most <= have_most:
            return
        tokens, most = max(tokens, have_tokens), max(most, have_most)
        self._spare.extend(range(places - 1, self._most.size - 1, -1))
        self._most = _grown(self._most, (places,))
        self._chosen = _grown(self._chosen, (places, tokens))
        self._top_tokens = _grown(self._top_tokens, (places, tokens, most))
        self._top = _grown(self._top, (places, tokens, most))


def _grown(table: NDArray, shape: tuple[int, ...]) -> NDArray:  # type: ignore[type-arg]
    """The table with room for more at the end of each axis."""
    grown = np.zeros(shape, table.dtype)
    grown[tuple(slice(0, have) for have in table.shape)] = table
    return grown
