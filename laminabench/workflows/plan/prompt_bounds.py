"""Bounds on the time to compute prompts, while decoding goes on; docs/plan.md derives them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laminabench.sim.spec import Float64
from laminabench.workflows.plan.prompt_demand import PromptDemand, Work
from laminabench.workflows.plan.tables import Line, PromptTables, Tables, below

# Lines that are tried: near so many rows, and near all that an iteration has.
NEAR_ROWS = (64, 256, 1024)


def path_lines(prompts: PromptTables, requests: int) -> Iterator[Line]:
    """Return some points below the path: which one is best depends on the prompts."""
    for rows in {min(near, prompts.budget) for near in (*NEAR_ROWS, requests, prompts.budget)}:
        yield below(prompts.path, rows, through_zero=True)


def least_with_prompts(tables: Tables, cycles: float, tokens: float, read: float, work: Work) -> float:
    """Return the least seconds of so many cycles that make so many tokens, and compute these prompts.

    The tokens read so many KV tokens; the prompts' rows share iterations with those of the tokens.
    """
    prompts = tables.prompts
    assert prompts is not None
    rows, made = tokens + work.rows, tokens + work.prompts
    iterations = max(cycles, rows / prompts.budget)
    if iterations <= 0:
        return 0.0

    def spent(table: Float64) -> float:
        line = below(table, rows / iterations, through_zero=True)
        return line.base * iterations + line.per_request * rows

    attention = prompts.chunks(work) + tables.per_token * read
    if cycles > 0:
        line = below(tables.attention, tokens / cycles, through_zero=True)
        attention += line.base * cycles + line.per_request * tokens
    head = prompts.head * made
    host = prompts.host_fixed * iterations + prompts.host_each * made
    return max(
        (spent(prompts.path) + head + host + attention) / tables.batches,
        (spent(prompts.model) + head) / tables.replicas,
        (spent(prompts.attention) + attention) / tables.attentions,
        cycles * float(tables.chain.min()),
    )


def ttft_p99(prompts: PromptTables, demand: PromptDemand) -> float:
    """Bound TTFT as if each request had an empty cluster."""
    rows, pairs = demand.own
    chunks = np.ceil(rows / prompts.budget)
    lines = path_lines(prompts, 1)
    path = np.max([line.base * chunks + line.per_request * rows for line in lines], axis=0)
    each = path + chunks * (prompts.fixed + prompts.host_fixed + prompts.host_each) + prompts.head
    each += prompts.per_row * rows + prompts.per_pair * pairs
    return float(np.sort(each)[-(-99 * len(each) // 100) - 1])
