"""The number of workers of each kind and how they share the work, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from lamina.fhbn import NETWORKS
from lamina.kv import capacity
from lamina.kv.copy import KvCopies
from lamina.operators import Experts
from lamina.pipeline import BatchDelta, Joined
from lamina.pipeline.batch_rows import NO_LOGPROBS, NO_PARENT, Ints
from lamina.pipeline.options import EngineError, ModelFacts, require_count
from lamina.pipeline.partition import PIPELININGS, Along, Partition, Pipelining, Schedule
from lamina.pipeline.records import Iterations

BATCHES = 2
CPU = "cpu"
DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True)
class Layout:
    """Model workers and attention workers, each a process on a core of its own, and on GPUs that are named:
    `model_on` and `attention_on` have a device for all of a kind, or one for each.

    Workers on one GPU that are `together` are threads of one process, so that they use it at the same time.
    `prefill_workers` compute prompts while others decode; without them model workers do, in a batch's turn.
    `pipelining` is how `batches` take turns: `serial` (one batch), `fixed` (each has a replica of its own) or
    `rotational` (n batches go round n - 1 replicas). The model workers divide into the replicas; those of a
    replica are tensor-parallel, or with `pipeline_parallel` stages that follow each other; `experts` "ep"
    gives each of a replica's workers some experts of every layer instead of a share of all. `batches` "auto"
    measures slices and attention first. `partition` is what attention workers share out. `stream_chunks`
    above 1 splits each message, along requests or heads, so that attention begins on the first part.
    `kv_copies` keeps a second copy of KV, from which a lost attention worker's is read back: in memory of the
    "host" process or of the next attention "worker", or in a temporary file on "disk".
    """

    model_workers: int = 1
    attention_workers: int = 1
    prefill_workers: int = 0  # on CPUs
    model_on: str | tuple[str, ...] = CPU  # "cuda:0"; more than one worker may be on a GPU
    attention_on: str | tuple[str, ...] = CPU
    together: bool = False  # for where NVIDIA's MPS does not run, without which processes take turns on a GPU
    pipelining: Pipelining | None = None
    batches: int | Literal["auto"] | None = None
    min_batch: int = 1  # sequences that each batch should have: with fewer in all, fewer take turns
    pipeline_parallel: int = 1
    experts: Experts = "tp"
    partition: Along = "heads"
    stream_chunks: int = 1
    stream_along: Along = "requests"
    network: str = "auto"
    kv_copies: KvCopies = "none"
    oversubscribe: bool = False  # workers may share cores
    timeout_s: float = 120.0  # that a worker may be silent in the middle of an iteration

    def __post_init__(self) -> None:
        counts = ("model_workers", "attention_workers", "min_batch", "pipeline_parallel", "stream_chunks")
        for name in counts:
            require_count(name, getattr(self, name))
        require_count("prefill_workers", self.prefill_workers, least=0)
        for name in ("model_on", "attention_on"):
            object.__setattr__(self, name, self._on(name))
        if self.pipelining is not None and self.pipelining not in PIPELININGS:
            raise EngineError(
                "layout-pipelining-unknown",
                f"pipelining '{self.pipelining}': known are {', '.join(PIPELININGS)}",
            )
        for name in ("partition", "stream_along"):
            if getattr(self, name) not in ("heads", "requests"):
                raise EngineError(
                    "layout-partition-unknown", f"{name} '{getattr(self, name)}': known are heads, requests"
                )
        if self.experts not in get_args(Experts):
            raise EngineError("layout-experts-unknown", f"experts '{self.experts}': known are tp, ep")
        if self.network not in NETWORKS:
            raise EngineError(
                "layout-network-unknown",
                f"network '{self.network}': known between workers on CPUs are {', '.join(NETWORKS)}",
            )
        if self.kv_copies not in get_args(KvCopies):
            raise EngineError(
                "layout-kv-copies-unknown",
                f"kv_copies '{self.kv_copies}': known are {', '.join(get_args(KvCopies))}",
            )
        if self.kv_copies == "worker" and self.attention_workers < 2:
            raise EngineError(
                "layout-kv-copies-alone",
                'kv_copies "worker": there is one attention worker; give two or more, or choose host',
            )
        if self.batches != "auto":
            self._settle()

    def _on(self, name: str) -> str | tuple[str, ...]:
        """Return the devices that are named, one for each worker or one for all."""
        given, workers = getattr(self, name), getattr(self, name.removesuffix("on") + "workers")
        devices = (given,) if isinstance(given, str) else tuple(given)
        for device in devices:
            if not isinstance(device, str) or not DEVICE.fullmatch(device):
                raise EngineError(
                    "layout-device-unknown",
                    f"{name} has {device!r}: give cpu, cuda, or cuda:1 for the second",
                )
        if not isinstance(given, str) and len(devices) != workers:
            raise EngineError(
                "layout-devices-count",
                f"{name} has {len(devices)} devices for {workers} workers: give one, or one for each",
            )
        first = tuple("cuda:0" if device == "cuda" else device for device in devices)
        return first[0] if isinstance(given, str) else first

    def _settle(self) -> None:
        """Fill in what was left open; an EngineError where the parts do not go together."""
        stages, batches, pipelining = self.pipeline_parallel, self.batches, self.pipelining
        if stages > 1:
            if batches not in (None, stages) or pipelining not in (None, "fixed"):
                raise EngineError(
                    "layout-stages-batches", f"{stages} pipeline stages take {stages} batches, fixed"
                )
            batches, pipelining = stages, "fixed"
        if batches is None:
            batches = 1 if pipelining == "serial" else BATCHES
        require_count("batches", batches)
        assert isinstance(batches, int)
        pipelining = pipelining or ("serial" if batches == 1 else "rotational")
        if pipelining == "serial" and batches != 1:
            raise EngineError(
                "layout-serial-batches", f"serial has one batch, not {batches}: choose rotational or fixed"
            )
        object.__setattr__(self, "batches", batches)
        object.__setattr__(self, "pipelining", pipelining)
        if self.model_workers % self.places:
            what = "stages" if stages > 1 else f"replicas of {batches} batches"
            raise EngineError(
                "layout-replicas-uneven",
                f"{self.model_workers} model workers do not divide into the {self.places} {what}: give a "
                f"multiple of {self.places}",
            )
        if self.experts == "ep" and self.ranks == 1:
            raise EngineError(
                "layout-experts-alone",
                'experts "ep": there is one model worker a replica, which has all experts; give more of them',
            )

    @property
    def workers(self) -> int:
        return self.model_workers + self.attention_workers + self.prefill_workers

    @property
    def devices(self) -> list[str]:
        """Each worker's device, in the order of `names`."""
        kinds = ((self.model_on, self.model_workers), (self.attention_on, self.attention_workers))
        devices = [
            device for on, workers in kinds for device in ((on,) * workers if isinstance(on, str) else on)
        ]
        return devices + [CPU] * self.prefill_workers

    @property
    def attending(self) -> range:
        """The attention workers' names, as in `names`."""
        return range(self.model_workers, self.model_workers + self.attention_workers)

    @property
    def prefilling(self) -> range:
        return range(self.attending.stop, self.workers)

    @property
    def places(self) -> int:
        return self.schedule(1).places

    @property
    def ranks(self) -> int:
        return self.model_workers // self.places

    def schedule(self, slices: int) -> Schedule:
        """Return the order in which workers run a model of this many slices."""
        assert isinstance(self.batches, int)
        assert self.pipelining is not None
        return Schedule(self.pipelining, self.batches, slices, self.pipeline_parallel)

    def partition_for(self, heads: int, kv_heads: int) -> Partition:
        """Return each worker's heads; raise an EngineError if they cannot be divided."""
        return Partition(
            self.partition,
            self.ranks,
            self.attention_workers,
            heads,
            kv_heads,
            self.stream_chunks,
            self.stream_along,
        )

    def cores(self) -> list[int]:
        """Return a core for each worker, in the order of `names`; an EngineError if there are too few."""
        usable = sorted(os.sched_getaffinity(0))
        if self.workers > len(usable) and not self.oversubscribe:
            prefill = f", {self.prefill_workers} prefill" if self.prefill_workers else ""
            raise EngineError(
                "layout-cores-too-few",
                f"{self.model_workers} model{prefill} and {self.attention_workers} attention workers need "
                f"{self.workers} cores, and {len(usable)} may be used: give fewer workers, or let them share "
                "cores (oversubscribe)",
            )
        return [usable[number % len(usable)] for number in range(self.workers)]

    @property
    def names(self) -> list[str]:
        """The workers' names: model, attention and prefill workers."""
        kinds = {
            "model": self.model_workers,
            "attention": self.attention_workers,
            "prefill": self.prefill_workers,
        }
        return [f"{kind} {number}" for kind, count in kinds.items() for number in range(count)]


@dataclass(frozen=True)
class Scaled:
    """A layout with other attention workers, each with as much memory as one had before."""

    layout: Layout
    partition: Partition
    device_tokens: int  # of a pool
    pool_tokens: int  # including those outside the device
    cores: list[int]  # of each worker

    @staticmethod
    def of(
        layout: Layout,
        facts: ModelFacts,
        device_tokens: int,
        overcommit: float,
        sequences: int,
        attention_workers: int,
        free_bytes: int,
        cores: Callable[[Layout], list[int]],
    ) -> Scaled:
        """Raise an EngineError if there cannot be so many; `cores` says where they would be."""
        require_count("attention_workers", attention_workers)
        then = replace(layout, attention_workers=attention_workers)
        partition = then.partition_for(facts.heads, facts.kv_heads)
        tokens, more = device_tokens, attention_workers - layout.attention_workers
        shape = facts.kv_shape
        share_bytes = shape.nbytes(device_tokens, sequences, overcommit)
        if layout.partition == "heads" and facts.kv_heads > 1:
            # All of them have a part of each token: with more of them there are more tokens.
            most = sequences * facts.max_positions
            then_bytes = shape.nbytes(device_tokens, sequences) * attention_workers
            tokens = shape.tokens_in(then_bytes // layout.attention_workers, sequences, most)
            share_bytes //= layout.attention_workers
        if tokens < 1:
            raise EngineError(
                "engine-kv-too-small",
                f"{attention_workers} attention workers have no room for the KV: keep more workers",
            )
        if more * share_bytes > free_bytes:
            raise EngineError(
                "engine-out-of-memory",
                f"{more} more attention workers need {more * share_bytes / 1e9:,.1f} GB for KV and "
                f"{free_bytes / 1e9:,.1f} GB are free: add fewer",
            )
        return Scaled(then, partition, tokens, capacity(tokens, overcommit), cores(then))

    @property
    def pools(self) -> int:
        """KV memories that a request can be in."""
        return self.partition.pools


ITERATIONS = 5  # of which the first one touches all memory, and is not counted


@dataclass(frozen=True)
class Trial:
    """A measurement of one number of batches."""

    batches: int
    slice_s: float  # t_m
    attention_s: float  # t_a
    round_s: float  # of one slice and one attention of every batch, by these two

    @staticmethod
    def measured(iterations: Iterations, schedule: Schedule) -> Trial:
        """Summarise the workers' records, without each batch's first iteration."""
        counted = iterations.iteration > 0
        slice_s = float(np.median(iterations.model_s[counted])) / schedule.slices
        attention_s = float(np.median(iterations.attention_s[counted])) / (schedule.slices - 1)
        # A round takes as long as its busiest worker, and no less than a batch needs for itself.
        batches = schedule.batches
        busiest = max(batches * slice_s / schedule.places, batches * attention_s)
        return Trial(batches, slice_s, attention_s, max(busiest, slice_s + attention_s))


def candidates(layout: Layout) -> Iterator[Layout]:
    """Return these workers with one batch, and with as many as there can be replicas for."""
    for batches in range(1, layout.model_workers + 2):
        if layout.pipelining == "serial" and batches > 1:
            return
        try:
            yield replace(layout, batches=batches)
        except EngineError:
            continue  # the workers do not divide into that many replicas


def settle(layout: Layout, measure: Callable[[Layout], Trial]) -> tuple[Layout, tuple[Trial, ...]]:
    """Return the layout with the number of batches that makes a token's round shortest, and the trials."""
    trials: list[tuple[Trial, Layout]] = []
    refused: EngineError | None = None
    for candidate in candidates(layout):
        try:
            trials.append((measure(candidate), candidate))
        except EngineError as error:  # heads that do not divide so, say
            refused = error
    if not trials:
        raise refused or EngineError(
            "layout-no-batches", "no number of batches goes with these workers: give one"
        )
    # All of them run the same sequences, so that rounds can be compared. Of equal ones the simplest.
    _, best = min(trials, key=lambda pair: (pair[0].round_s, pair[0].batches))
    return best, tuple(trial for trial, _ in trials)


def made_up(names: Ints, tokens: int, pools: int) -> BatchDelta:
    """Let sequences of so many tokens join, with KV of made-up content."""
    count = len(names)
    values = {"token": 0, "position": tokens, "parent": NO_PARENT, "shared": 0, "made": 0, "top_k": 0}
    values |= {"most": NO_LOGPROBS, "seed": 0, "temperature": 0, "top_p": 1}
    columns = {name: np.full(count, value, getattr(Joined(), name).dtype) for name, value in values.items()}
    return BatchDelta(joined=Joined(name=names, pool=names % pools, **columns))
