"""The replay use case: from a typed request to its result. Everything that replays calls this."""

from collections.abc import Iterator

from laminabench.requests.replay import ReplayRequest
from laminabench.systems.base import Replayed, Workload
from laminabench.workflows.replay.run import Result, replay, run

__all__ = ["ReplayRequest", "Replayed", "Result", "Workload", "in_turns", "replay", "run"]


def in_turns(count: int, rounds: int) -> Iterator[tuple[int, int]]:
    """Yield (round, side) in alternating order: a machine that slows down slows all sides equally."""
    for turn in range(rounds):
        for side in range(count)[:: -1 if turn % 2 else 1]:
            yield turn, side
