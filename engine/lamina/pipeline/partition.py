"""Partition of heads, requests and slices over workers, and the schedule of their work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lamina._native import Rotation
from lamina.pipeline.options import EngineError

Along = Literal["heads", "requests"]


@dataclass(frozen=True)
class Piece:
    """The heads and requests in one message between a model worker and an attention worker."""

    heads: range  # of the model's queries
    part: int = 0  # of the attention worker's requests, one of `parts`
    parts: int = 1

    def rows(self, count: int) -> slice:
        return slice(count * self.part // self.parts, count * (self.part + 1) // self.parts)


@dataclass(frozen=True)
class Partition:
    """Assignment of heads and requests to workers.

    Model workers of a replica (ranks) each have a share of the heads: KV heads with their queries, or, of a
    model with one KV head, queries, and all have that one. Attention workers have a share of the heads of all
    requests, or all heads of some requests. `chunks` above 1 streams: each message is split so that attention
    to one part runs while the next one travels.
    """

    along: Along
    ranks: int
    workers: int
    heads: int
    kv_heads: int
    chunks: int = 1
    chunks_along: Along = "requests"

    def __post_init__(self) -> None:
        # Also validates partitions received from other processes.
        if min(self.ranks, self.workers, self.kv_heads, self.chunks) < 1 or self.heads < self.kv_heads:
            raise ValueError(f"{self} is no partition")
        shared = self.heads // self._unit
        what = f"{shared} KV heads" if self.kv_heads > 1 else f"{shared} heads"
        if shared % self.ranks:
            raise EngineError(
                "layout-heads-uneven",
                f"{what} do not split over {self.ranks} model workers of a replica: {_possible(shared)}",
            )
        if self.along == "heads" and shared % self.workers:
            raise EngineError(
                "layout-heads-uneven",
                f"{what} do not split over {self.workers} attention workers: {_possible(shared)}, or "
                "partition by requests",
            )

    @property
    def pools(self) -> int:
        """Number of memories that a request can be in: one if every worker has a part of each request."""
        return self.workers if self.along == "requests" else 1

    @property
    def copies(self) -> int:
        """Attention workers that store the same KV: those that share the queries of one KV head."""
        return self.workers if self.along == "heads" and self.kv_heads == 1 else 1

    @property
    def _unit(self) -> int:
        """Number of queries that are not split."""
        return self.heads // self.kv_heads if self.kv_heads > 1 else 1

    def kv_of(self, heads: range) -> range:
        """Return the KV heads that these queries attend to."""
        group = self.heads // self.kv_heads
        return range(heads.start // group, -(-heads.stop // group))

    def of_rank(self, rank: int) -> range:
        return _share(self.heads, rank, self.ranks)

    def of_worker(self, worker: int) -> range:
        return range(self.heads) if self.along == "requests" else _share(self.heads, worker, self.workers)

    def of_both(self, rank: int, worker: int) -> range:
        own, its = self.of_rank(rank), self.of_worker(worker)
        return range(max(own.start, its.start), min(own.stop, its.stop))

    def gives_prompts(self, rank: int, worker: int) -> bool:
        """Return whether a rank sends prompts' KV to an attention worker; the first rank sends shared KV."""
        both = self.of_both(rank, worker)
        return bool(both) and (self.kv_heads > 1 or both.start == self.of_worker(worker).start)

    def pieces(self, rank: int, worker: int) -> list[Piece]:
        """Return the messages between two workers for one layer of one batch, in order."""
        both, unit = self.of_both(rank, worker), self._unit
        if not both:
            return []
        if self.chunks_along == "requests":
            return [Piece(both, part, self.chunks) for part in range(self.chunks)]
        units = len(both) // unit
        chunks = min(self.chunks, units)
        cuts = [both.start + units * part // chunks * unit for part in range(chunks + 1)]
        return [Piece(range(*ends)) for ends in itertools.pairwise(cuts)]


def _share(heads: int, number: int, of: int) -> range:
    item = heads // of
    return range(number * item, (number + 1) * item)


def within(heads: range, some: range) -> slice:
    """Return the position of `some` heads within a range of heads."""
    return slice(heads.start - some.start, heads.stop - some.start)


def _possible(heads: int) -> str:
    return "possible are " + ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)


Pipelining = Literal["serial", "rotational", "fixed"]
PIPELININGS: tuple[Pipelining, ...] = ("serial", "rotational", "fixed")


class Turn(NamedTuple):
    """One slice of one batch, and the attention after it unless it is the last."""

    batch: int
    cycle: int  # in each, every batch runs one iteration or none
    slice: int
    place: int  # the replica, or the stage, that runs it


class Schedule:
    """The order of turns, the same for all workers, each of which does its own.

    On every replica, and on the attention workers together, work is done in the order of the clock and then
    of the batch. A clock's tick is one slice of every batch; which replica runs it, csrc/core/rotation.hpp
    says, for the virtual cluster too. With pipeline parallelism a place is a stage, which has a part of the
    slices, and every batch is one stage behind the one before it.
    """

    def __init__(self, pipelining: Pipelining, batches: int, slices: int, stages: int = 1) -> None:
        if stages > 1 and (pipelining != "fixed" or batches != stages):
            raise EngineError(
                "layout-stages-batches", f"{stages} pipeline stages take as many batches, fixed"
            )
        self.pipelining = pipelining
        self.batches, self.slices, self.stages = batches, slices, stages
        self._rotation = Rotation(pipelining, batches)
        self.places = stages if stages > 1 else self._rotation.replicas
        # The first slice of each stage; stages differ by one slice at most.
        self._firsts = [slices * stage // stages for stage in range(stages + 1)]
        self._stage_of = [stage for stage in range(stages) for _ in self.slices_of(stage)]
        # A stage's ticks; one that has fewer slices is idle for the first of them: what it gives is wanted as
        # soon as it is there, and overtakes nothing on its way to the next stage.
        self._each = -(-slices // stages)
        ticks = [
            (stage + 1) * self._each + slice_ - self._firsts[stage + 1]
            for slice_, stage in enumerate(self._stage_of)
        ]
        self._ticks = [tick - ticks[0] for tick in ticks]

    @property
    def migrates(self) -> bool:
        """True if a batch's next slice may run at another place, so that its context is sent."""
        return self.stages > 1 or self._rotation.migrates

    def slices_of(self, place: int) -> range:
        """Return the slices whose weights a place needs."""
        if self.stages == 1:
            return range(self.slices)
        return range(self._firsts[place], self._firsts[place + 1])

    def place(self, batch: int, cycle: int, slice_: int) -> int:
        if self.stages > 1:
            return self._stage_of[slice_]
        return self._rotation.replica(batch, cycle * self.slices + slice_)

    def clock(self, batch: int, cycle: int, slice_: int) -> int:
        """Return the tick of a turn since the cluster's start; turns are ordered by tick, then batch."""
        if self.stages > 1:
            return (cycle * self.stages + batch) * self._each + self._ticks[slice_]
        return cycle * self.slices + slice_

    def turns(self, first: int = 0) -> Iterator[Turn]:
        """Yield all turns in order from this cycle on, endlessly."""
        if self.stages > 1:
            yield from self._staged(first)
        for cycle in itertools.count(first):
            for slice_ in range(self.slices):
                for batch in range(self.batches):
                    yield Turn(batch, cycle, slice_, self.place(batch, cycle, slice_))

    def _staged(self, first: int) -> Iterator[Turn]:
        period = self._each * self.stages
        slices = {tick: slice_ for slice_, tick in enumerate(self._ticks)}
        for clock in itertools.count(first * period):
            for batch in range(self.batches):
                cycle, tick = divmod(clock - batch * self._each, period)
                if cycle >= first and tick in slices:
                    yield Turn(batch, cycle, slices[tick], self._stage_of[slices[tick]])
