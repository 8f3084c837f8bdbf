"""Benchmark of the KV slab allocator: tokens a second allocated and released from Python on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lamina.kv import Slab
from laminabench.bench.frame import Report, Row, all_met, judged, rounds_for, seconds_of, spread

TARGET_PER_S = 30e6
TOKENS_PER_SAMPLE = 1 << 18  # several milliseconds of work: far above the clock's grain and a call's cost
FEWEST_SAMPLES = 5


def run(seconds: float = 3.0) -> Report:
    """Measure every kind of call for about `seconds` in all.

    An allocation is one token: for `allocate` and `extend` one slot allocated, for `release` one freed, for
    `fork` one shared. Rates are of complete Python calls, including their results.

    The target is for calls that a serving loop makes once a step for many tokens: `extend` of batches of 256
    and more, and `allocate` of long prompts. `extend` of 64 and `allocate` of 1 and 128 mainly show the cost
    of a call from Python, so they have no target. The median counts, as the minimum depends on other load.
    """
    prompts = [measure_prompts(n) for n in (1, 128, 1024)]
    decodes = [measure_extend(batch) for batch in (64, 256, 1024, 4096)]
    kinds = [*prompts, *decodes, measure_fork(1024)]
    rows = [row for kind in kinds for row in sample(kind, seconds / len(kinds))]
    facts = {
        "benchmark": "slab",
        "target_allocations_per_s": TARGET_PER_S,
        "rows": rows,
        "met": all_met(rows),
    }
    titles = ("<call", "requests", "tokens each", "million tokens/s", "min to max")
    return Report(facts, [judged((*titles, f"<target {TARGET_PER_S / 1e6:g}"), rows)])


@dataclass(frozen=True)
class Kind:
    """Calls measured together, because one undoes the other; a round gives the seconds of each, by name."""

    requests: int
    tokens_per_request: int
    tokens_per_round: int
    round: Callable[[], dict[str, float]]


def sample(kind: Kind, seconds: float) -> list[Row]:
    """Return rows of rounds for about `seconds`; the first, which pages the memory in, is not counted."""
    kind.round()
    rounds = [kind.round() for _ in rounds_for(seconds, FEWEST_SAMPLES)]
    return [_row(name, kind, [kind.tokens_per_round / took[name] for took in rounds]) for name in rounds[0]]


def _row(operation: str, kind: Kind, rates: list[float]) -> Row:
    reached = spread(rates)
    speaks_of = kind.requests >= 256 if operation == "extend" else kind.tokens_per_request >= 1024
    speaks_of &= operation in ("extend", "allocate")
    facts = {
        "operation": operation,
        "requests": kind.requests,
        "tokens_per_request": kind.tokens_per_request,
        "allocations_per_s": reached,
        "samples": len(rates),
        "judged": speaks_of,
    }
    millions = reached.cells(lambda rate: f"{rate / 1e6:,.0f}")
    cells = (operation, f"{kind.requests:,}", f"{kind.tokens_per_request:,}", *millions)
    return Row(facts, cells, reached.median >= TARGET_PER_S if speaks_of else None)


def measure_prompts(n: int) -> Kind:
    """Allocate prompts of n tokens one by one, then release them as one batch in another order."""
    requests = max(1, TOKENS_PER_SAMPLE // max(n, 16))
    slab, leaving = Slab(requests * n), shuffled(requests)

    def allocate() -> None:
        for request in range(requests):
            slab.allocate(request, n)

    def round_() -> dict[str, float]:
        return {"allocate": seconds_of(allocate), "release": seconds_of(lambda: slab.release(leaving))}

    return Kind(requests, n, requests * n, round_)


def measure_extend(batch: int) -> Kind:
    """Measure decode steps of a batch whose requests lie in memory in another order than in the batch."""
    steps = max(1, TOKENS_PER_SAMPLE // batch)
    slab, decoding = Slab(batch * (steps + 128)), shuffled(batch)

    def extend() -> None:
        for _ in range(steps):
            slab.extend(decoding)

    def round_() -> dict[str, float]:
        for request in range(batch):
            slab.allocate(request, 128)
        took = seconds_of(extend)
        slab.release(decoding)
        return {"extend": took}

    return Kind(batch, 1, steps * batch, round_)


def measure_fork(n: int) -> Kind:
    """Measure forks of one prompt of n tokens, as parallel sampling makes them."""
    children = TOKENS_PER_SAMPLE // n
    slab = Slab(n)
    slab.allocate(-1, n)

    def fork() -> None:
        for child in range(children):
            slab.fork(-1, child)

    def round_() -> dict[str, float]:
        took = seconds_of(fork)
        slab.release(shuffled(children))
        return {"fork": took}

    return Kind(children, n, children * n, round_)


def shuffled(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(0).permutation(count).astype(np.int64)
