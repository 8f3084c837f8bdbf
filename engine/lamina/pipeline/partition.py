"""How a batch's attention is dealt out: heads or requests to attention workers, in one piece or several."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from lamina.pipeline.options import EngineError

Along = Literal["heads", "requests"]


@dataclass(frozen=True)
class Piece:
    """What travels in one message between a model worker and an attention worker, and is attended at once."""

    kv_heads: range  # of the model
    part: int = 0  # of the attention worker's requests: the part-th of `parts`
    parts: int = 1

    def rows(self, count: int) -> slice:
        return slice(count * self.part // self.parts, count * (self.part + 1) // self.parts)


@dataclass(frozen=True)
class Partition:
    """Who has which heads of which requests.

    Model workers of a replica (ranks) each have a share of the heads. Attention workers have a share of the
    heads of all requests, or all heads of some requests. `chunks` above 1 streams: each message is split so
    that attention to one part runs while the next one travels.
    """

    along: Along
    ranks: int
    workers: int
    heads: int
    kv_heads: int
    chunks: int = 1
    chunks_along: Along = "requests"

    def __post_init__(self) -> None:
        if self.kv_heads % self.ranks:
            raise EngineError(
                "layout-heads-uneven",
                f"{self.kv_heads} KV heads do not split over {self.ranks} model workers of a replica: "
                f"{_possible(self.kv_heads)}",
            )
        if self.along == "heads" and self.kv_heads % self.workers:
            raise EngineError(
                "layout-heads-uneven",
                f"{self.kv_heads} KV heads do not split over {self.workers} attention workers: "
                f"{_possible(self.kv_heads)}, or partition by requests",
            )

    @property
    def pools(self) -> int:
        """Memories that a request can be in: one if every worker has a part of each request."""
        return self.workers if self.along == "requests" else 1

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def of_rank(self, rank: int) -> range:
        return _share(self.kv_heads, rank, self.ranks)

    def of_worker(self, worker: int) -> range:
        return (
            range(self.kv_heads) if self.along == "requests" else _share(self.kv_heads, worker, self.workers)
        )

    def pieces(self, rank: int, worker: int) -> list[Piece]:
        """What travels between the two for one layer of one batch, in order."""
        mine, its = self.of_rank(rank), self.of_worker(worker)
        both = range(max(mine.start, its.start), min(mine.stop, its.stop))
        if not both:
            return []
        if self.chunks_along == "requests":
            return [Piece(both, part, self.chunks) for part in range(self.chunks)]
        chunks = min(self.chunks, len(both))
        cuts = [both.start + len(both) * part // chunks for part in range(chunks + 1)]
        return [Piece(range(*ends)) for ends in itertools.pairwise(cuts)]


def _share(heads: int, number: int, of: int) -> range:
    item = heads // of
    return range(number * item, (number + 1) * item)


def _possible(heads: int) -> str:
    return "possible are " + ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
