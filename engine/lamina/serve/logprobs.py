"""Log-probabilities of the sequences that ask for them, while they run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import Revealed


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's own log-probability, and the likeliest tokens with theirs."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class LogprobTable:
    """For each sequence that asked, by its row: how many likeliest it wants, and what its tokens came with.

    They are the model's own: before temperature, top-k and top-p.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, list[TokenLogprobs]]] = {}

    def open(self, row: int, most: int) -> None:
        self._rows[row] = most, []

    def record(self, rows: NDArray[np.int64], revealed: Revealed, which: NDArray[np.intp]) -> None:
        """The batch's rows have their next tokens. Beams reveal too: `which` are to be kept."""
        mine = rows[revealed.rows[which]]
        parts = (mine, revealed.chosen[which], revealed.tokens[which], revealed.logs[which])
        for row, own, ids, logs in zip(*(part.tolist() for part in parts), strict=True):
            most, kept = self._rows[row]
            kept.append(TokenLogprobs(own, tuple(zip(ids[:most], logs[:most], strict=True))))

    def of(self, row: int, since: int = 0) -> tuple[TokenLogprobs, ...] | None:
        """What the tokens of a row's sequence came with, from one of them on; None if it did not ask."""
        return tuple(self._rows[row][1][since:]) if row in self._rows else None

    def close(self, rows: list[int]) -> None:
        """The sequences are over; those that never asked do not mind."""
        for row in rows:
            self._rows.pop(row, None)
