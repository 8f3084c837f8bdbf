"""How many tokens a second the KV slab allocator hands out and takes back, called from Python on one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from lamina.kv import Slab
from laminabench.bench.timing import spread

TARGET_PER_S = 30e6
TOKENS_PER_SAMPLE = 1 << 18  # several milliseconds of work: far above the clock's grain and a call's cost
FEWEST_SAMPLES = 5


@dataclass(frozen=True)
class Samples:
    """One kind of call and the rates it reached, in tokens a second."""

    operation: str
    requests: int
    tokens_per_request: int
    rates: list[float]

    @property
    def judged(self) -> bool:
        """Whether the target speaks of this row."""
        if self.operation == "extend":
            return self.requests >= 256
        return self.operation == "allocate" and self.tokens_per_request >= 1024

    def row(self) -> dict[str, object]:
        rates = spread(self.rates)
        return {
            "operation": self.operation,
            "requests": self.requests,
            "tokens_per_request": self.tokens_per_request,
            "allocations_per_s": rates,
            "samples": len(self.rates),
            "judged": self.judged,
            "met": rates["median"] >= TARGET_PER_S if self.judged else None,
        }


def run(seconds: float = 3.0) -> dict[str, object]:
    """Measure every kind of call for about `seconds` in all; the answer is ready for JSON.

    An allocation is one token: for `allocate` and `extend` one slot handed out, for `release` one taken back,
    for `fork` one shared. Rates are of whole Python calls, with the making of their results.

    Judged against the target are the calls that a serving loop makes once a step for many tokens: `extend`
    of batches of 256 and more, and `allocate` of long prompts. `extend` of 64 and `allocate` of 1 and 128
    are shown, because they tell what a call from Python costs, and not judged, because they tell little else.
    The median counts: the minimum belongs to whatever else the machine did.
    """
    prompts = [measure_prompts(n) for n in (1, 128, 1024)]
    decodes = [measure_extend(batch) for batch in (64, 256, 1024, 4096)]
    kinds = [*prompts, *decodes, measure_fork(1024)]
    rows = [
        samples.row() for samples in chain.from_iterable(sample(kind, seconds / len(kinds)) for kind in kinds)
    ]
    return {
        "benchmark": "slab",
        "target_allocations_per_s": TARGET_PER_S,
        "rows": rows,
        "met": all(row["met"] for row in rows if row["judged"]),
    }


# One round of a kind of call, tirelessly repeated: yields the seconds that each named operation took.
Rounds = Iterator[dict[str, float]]


@dataclass(frozen=True)
class Kind:
    """Calls measured together, because one undoes the other."""

    requests: int
    tokens_per_request: int
    tokens_per_round: int
    rounds: Rounds


def sample(kind: Kind, seconds: float) -> list[Samples]:
    """Rounds for about `seconds`, the first not counted: it pages the memory in."""
    names = list(next(kind.rounds))
    rates: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rates[names[0]]) < FEWEST_SAMPLES:
        for name, took_s in next(kind.rounds).items():
            rates[name].append(kind.tokens_per_round / took_s)
    return [Samples(name, kind.requests, kind.tokens_per_request, found) for name, found in rates.items()]


def measure_prompts(n: int) -> Kind:
    """Allocate prompts of n tokens one by one, then release them as one batch in another order."""
    requests = max(1, TOKENS_PER_SAMPLE // max(n, 16))
    leaving = shuffled(requests)

    def rounds() -> Rounds:
        slab = Slab(requests * n)

        def allocate() -> None:
            for request in range(requests):
                slab.allocate(request, n)

        while True:
            yield {"allocate": timed(allocate), "release": timed(lambda: slab.release(leaving))}

    return Kind(requests, n, requests * n, rounds())


def measure_extend(batch: int) -> Kind:
    """Decode steps of a batch whose requests lie in memory in another order than in the batch."""
    steps = max(1, TOKENS_PER_SAMPLE // batch)
    decoding = shuffled(batch)

    def rounds() -> Rounds:
        slab = Slab(batch * (steps + 128))

        def extend() -> None:
            for _ in range(steps):
                slab.extend(decoding)

        while True:
            for request in range(batch):
                slab.allocate(request, 128)
            yield {"extend": timed(extend)}
            slab.release(decoding)

    return Kind(batch, 1, steps * batch, rounds())


def measure_fork(n: int) -> Kind:
    """Forks of one prompt of n tokens, as parallel sampling makes them."""
    children = TOKENS_PER_SAMPLE // n

    def rounds() -> Rounds:
        slab = Slab(n)
        slab.allocate(-1, n)

        def fork() -> None:
            for child in range(children):
                slab.fork(-1, child)

        while True:
            yield {"fork": timed(fork)}
            slab.release(shuffled(children))

    return Kind(children, n, children * n, rounds())


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def shuffled(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(0).permutation(count).astype(np.int64)
