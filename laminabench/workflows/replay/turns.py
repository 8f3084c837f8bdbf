"""The order in which alternating replays take turns."""

from __future__ import annotations

from collections.abc import Iterator


def in_turns(count: int, rounds: int) -> Iterator[tuple[int, int]]:
    """(round, side), there and back: a machine that slows down slows no side more than another."""
    for turn in range(rounds):
        for side in range(count)[:: -1 if turn % 2 else 1]:
            yield turn, side
