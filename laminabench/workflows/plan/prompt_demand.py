"""A trace's demand for computing prompts: the least, whatever prefixes are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laminabench.sim.spec import Float64
from laminabench.traces.table import Trace

# The share of requests or tokens that a 99th percentile may leave out.
LEFT_OUT = 0.01


class Work(NamedTuple):
    """Work of prompts: how many, their tokens, and pairs of a token with itself and each before it."""

    prompts: float
    rows: float
    pairs: float

    def without(self, *others: Work) -> Work:
        """Return the work left without the others."""
        missing = map(sum, zip(*others, strict=True))
        return Work(*(max(0.0, one - some) for one, some in zip(self, missing, strict=True)))

    def times(self, count: float) -> Work:
        return Work(*(count * each for each in self))


@dataclass(frozen=True)
class PromptDemand:
    """Demand of prompts: cached prefixes are skipped; each prefix is computed once at least."""

    all: Work
    late: Work  # of the hundredth of requests that have the most of each
    last: Work  # of requests that come so late that they may still wait when the last one comes
    longest: Work  # of any one
    unshared: Float64  # KV tokens not shared with other requests, by request
    own: tuple[Float64, Float64]  # rows and pairs that each computes for itself, at least

    def begun(self, batches: int, budget: int) -> Work:
        """Return the most work admitted but not computed: an iteration of each batch and one prompt."""
        iteration = Work(budget, budget, budget * self.longest.rows)
        return Work(*(batches * (one + some) for one, some in zip(self.longest, iteration, strict=True)))


def prompt_demand_of(trace: Trace, waiting_s: float) -> PromptDemand:
    prompt = trace.prompt_tokens.astype(np.float64)
    full = np.stack([np.ones(len(prompt)), prompt, _pairs(prompt)])
    shared, there, once, unit = _prefixes(trace)
    own = np.stack([np.ones(len(prompt)), prompt - there, full[2] - _pairs(there)])
    computed = own.sum(axis=1) + once * np.array([0.0, unit, _pairs(float(unit))])
    last = trace.arrival_s > trace.arrival_s[-1] - waiting_s
    return PromptDemand(
        all=Work(*computed.tolist()),
        late=Work(*map(largest, full)),
        last=Work(*full[:, last].sum(axis=1).tolist()),
        longest=Work(*full.max(axis=1).tolist()),
        unshared=np.maximum(prompt - shared, 1.0),
        own=(own[1], own[2]),
    )


def _prefixes(trace: Trace) -> tuple[Float64, Float64, int, int]:
    """Return each prompt's tokens in full prefix blocks, and those of them that may be cached.

    Then the number of cached blocks that no counted prompt computes, and the tokens in a block.
    """
    blocks, unit = trace.prefix_blocks, trace.meta.block_tokens
    if blocks is None or not unit:
        zeros = np.zeros(len(trace))
        return zeros, zeros, 0, 0
    prompt = trace.prompt_tokens.astype(np.int64)
    full = np.minimum(blocks.lengths(), prompt // unit)
    # The last token is always computed.
    there = np.minimum(full, (prompt - 1) // unit)
    hits, every = blocks.limit(there), blocks.limit(full)
    ends = every.ids[(every.offsets[1:] - 1)[full > there]]
    once = len(np.setdiff1d(hits.ids, ends))
    return (full * unit).astype(np.float64), (there * unit).astype(np.float64), once, unit


def _pairs(rows: Float64 | float) -> Float64 | float:
    return rows * (rows + 1) / 2


def largest(values: Float64) -> float:
    """Return the mean of the largest hundredth."""
    first = len(values) - int(np.ceil(LEFT_OUT * len(values)))
    return float(np.partition(values, first)[first:].sum())
